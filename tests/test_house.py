"""Rules of the code base, read from the sources: who may use which name, and how names are chosen.

import-linter checks which room may import which (pyproject.toml, `make lint`).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "attnflow"
SOURCES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
BENCHMARKS = {
    path: ast.parse(path.read_text())
    for name in ("benchmarks", "reproduction")
    for path in sorted((ROOT / name).glob("*.py"))
}
TESTS = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "tests").rglob("*.py"))}
DOCUMENTATION = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "docs" / "theme").glob("*.py"))}
HELPERS = {path: tree for path, tree in TESTS.items() if path.parent.name == "helpers"}

PARTICIPLES = {
    "found",
    "told",
    "held",
    "asked",
    "given",
}  # a name should say what a thing is, not what was done to it
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")

FunctionDef = (ast.FunctionDef, ast.AsyncFunctionDef)


def at(path: Path, node: ast.AST, what: str) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {what}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def private_definitions(tree: ast.AST) -> Iterator[str]:
    """Yield functions, classes, variables and attributes of `self` that a module defines under a private name."""
    for node in ast.walk(tree):
        if isinstance(node, (*FunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = [node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names = [node.attr]
        else:
            names = []
        yield from filter(is_private, names)


def private_uses() -> Iterator[str]:
    """Names with an underscore belong to their module; other modules need a public name."""
    owners = defaultdict(set)
    for path, tree in SOURCES.items():
        for name in private_definitions(tree):
            owners[name].add(path)
    modules = {path.stem for path in SOURCES} | {path.parent.name for path in SOURCES}
    for path, tree in (SOURCES | BENCHMARKS).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                ("attnflow", "benchmarks", "reproduction")
            ):
                names = [alias.name for alias in node.names if alias.name not in modules]
            elif isinstance(node, ast.Attribute) and owners[node.attr] - {path} and path not in owners[node.attr]:
                names = [node.attr]
            else:
                names = []
            yield from (at(path, node, name) for name in names if is_private(name))


def command_line_words() -> Iterator[str]:
    """The library does not know the command line: it imports no typer, and its messages name Python arguments."""
    for path, tree in SOURCES.items():
        if path.parent.name == "cli":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from (at(path, node, option) for option in OPTION.findall(node.value))
            elif isinstance(node, ast.Import | ast.ImportFrom) and "typer" in ast.unparse(node):
                yield at(path, node, ast.unparse(node))


def repeated_file_names() -> Iterator[str]:
    """File names are unique, so the name alone finds a file."""
    paths = defaultdict(list)
    for path in SOURCES:
        paths[path.name].append(str(path.relative_to(ROOT)))
    yield from (", ".join(same) for name, same in paths.items() if len(same) > 1 and not name.startswith("__"))


def public_functions(body: Iterable[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in body:
        if isinstance(node, FunctionDef) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body)


def public_any() -> Iterator[str]:
    """Types are documentation: `-> Any` says nothing about the result."""
    for path, tree in SOURCES.items():
        functions = list(public_functions(tree.body))
        overloaded = {f.name for f in functions if any("overload" in ast.unparse(d) for d in f.decorator_list)}
        for function in functions:
            seen = function.decorator_list or function.name not in overloaded  # callers see only the overloads
            if seen and function.returns and "Any" in ast.unparse(function.returns).split(" | "):
                yield at(path, function, f"{function.name} -> {ast.unparse(function.returns)}")


def participles() -> Iterator[str]:
    """Variables are nouns for their contents (`rows`, `manifest`, `message`), not participles for what was done."""
    for path, tree in (SOURCES | BENCHMARKS | DOCUMENTATION | HELPERS).items():
        for node in ast.walk(tree):
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id
            name = stored or (isinstance(node, ast.arg) and node.arg)
            if name in PARTICIPLES:
                yield at(path, node, name)


def imports_of_tests() -> Iterator[str]:
    """Code that several tests share belongs in tests/helpers or in a fixture."""
    for path, tree in TESTS.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1].startswith(
                ("test_", "conftest")
            ):
                yield at(path, node, ast.unparse(node))


def waits_for_expressions() -> Iterator[str]:
    """Pages forbid `eval`, which a browser needs to poll an expression, so tests wait for functions (`() => …`)."""
    for path, tree in TESTS.items():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "wait_for_function"
            ):
                text = ast.unparse(node.args[0])
                if not isinstance(node.args[0], ast.Name) and "=>" not in text:
                    yield at(path, node, text)


RULES = (
    private_uses,
    command_line_words,
    repeated_file_names,
    public_any,
    participles,
    imports_of_tests,
    waits_for_expressions,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rules_of_the_house(rule: Callable[[], Iterator[str]]) -> None:
    broken = list(rule())
    assert not broken, "\n".join([rule.__doc__ or "", *broken])
