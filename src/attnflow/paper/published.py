"""The results of Abnar & Zuidema (2020): the means and standard deviations of their tables, and their claims."""

from __future__ import annotations

TITLE = "Abnar & Zuidema (2020), Quantifying Attention Flow in Transformers, ACL 2020"

Row = dict[str, list[tuple[float, float] | None]]

TABLES: dict[str, Row] = {
    "table1": {
        "raw": [(0.69, 0.27), (0.10, 0.43), (-0.11, 0.49), (-0.09, 0.52), (0.20, 0.45), (0.29, 0.39)],
        "rollout": [(0.32, 0.26), (0.38, 0.27), (0.51, 0.26), (0.62, 0.26), (0.70, 0.25), (0.71, 0.24)],
        "flow": [(0.32, 0.26), (0.44, 0.29), (0.70, 0.25), (0.70, 0.22), (0.71, 0.22), (0.70, 0.22)],
    },
    "table2": {
        "raw": [(0.53, 0.33), (0.16, 0.38), (-0.06, 0.42), (0.00, 0.47), (0.24, 0.40), (0.46, 0.35)],
        "rollout": [(0.22, 0.31), (0.27, 0.32), (0.39, 0.32), (0.47, 0.32), (0.53, 0.32), (0.54, 0.31)],
        "flow": [(0.22, 0.31), (0.31, 0.34), (0.54, 0.32), (0.61, 0.28), (0.60, 0.28), (0.61, 0.28)],
    },
    "table3": {
        "raw": [(0.12, 0.21), None, (0.09, 0.21), None, (0.08, 0.20), (0.09, 0.21)],
        "rollout": [(0.11, 0.19), None, (0.12, 0.21), None, (0.13, 0.21), (0.13, 0.20)],
        "flow": [(0.11, 0.19), None, (0.11, 0.21), None, (0.12, 0.22), (0.14, 0.21)],
    },
}

CLAIMS = {
    "collapse": (
        "raw collapses in the middle",
        (
            "raw attention, at its lowest layer between the first and the last, is below half of its value at L1, and "
            "below rollout and flow at that layer (the paper: rather low, except for the first layer)"
        ),
    ),
    "growth": (
        "rollout grows with depth",
        "rollout is higher at each layer than at the one before (true of the paper's rows; its text does not say it)",
    ),
    "ahead": (
        "flow is ahead of rollout from L3 on",
        "flow is above rollout at each layer from L3 on (the paper: attention flow weights are more reliable)",
    ),
    "end": (
        "both beat raw at the end",
        "rollout and flow are above raw attention at the last layer (the paper: both are better correlated)",
    ),
}
"""Each claim in short, and as it is tested on a table."""

EXAMPLES = (
    ("the key to the cabinets", "the keys to the cabinets", True, None),
    ("the article on NNP large systems", "the articles on NNP large systems", True, True),
    ("here the NNS differ in that the female", "here the NNP differ in that the female", False, True),
)
"""The sentences of Figures 1 to 3, all before a singular verb.

Each comes with one word changed, with whether the paper's model is right, and with whether the change flips its answer
(None if the paper does not say).
"""

ACCURACY = {"table1": 0.96, "table2": 0.96}


def means(table: str, view: str) -> list[float | None]:
    """Return a row of the paper; None for a layer that it omits."""
    return [None if cell is None else cell[0] for cell in TABLES[table][view]]
