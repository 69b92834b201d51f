"""Files in the formats of WinoBias and Winogender, with a few sentences."""

from __future__ import annotations

from pathlib import Path

PRO = """1 [The baker] paid the guard because [she] was grateful.
2 The baker paid [the guard] because of [his] patience.
3 The mover waited for [the nurse] and greeted [her] at the door.
"""
ANTI = """1 [The baker] paid the guard because [he] was grateful.
2 The baker paid [the guard] because of [her] patience.
3 The mover waited for [the nurse] and greeted [him] at the door.
"""
ROWS = (
    "sentid\tsentence\n"
    "plumber.tenant.0.male.txt\tThe plumber left the tenant his tools.\n"
    "plumber.tenant.0.female.txt\tThe plumber left the tenant her tools.\n"
    "plumber.tenant.0.neutral.txt\tThe plumber left the tenant their tools.\n"
    "nurse.someone.1.female.txt\tSomeone asked the nurse if she could go home.\n"
)


def winobias(folder: Path, pro: str = PRO, anti: str = ANTI) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "pro_stereotyped_type1.txt.dev").write_text(pro)
    (folder / "anti_stereotyped_type1.txt.dev").write_text(anti)
    return folder
