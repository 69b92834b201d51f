"""The rivals' own packages, imported without dependencies that they do not use here, and a model to lend to them.

None of their code is in this repository. A folder with their packages on PYTHONPATH is enough (docs/evaluation.md says
how to make one). Their imports for plots, tables and text splitting may be missing: stand-ins replace them during the
import only.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import random
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.capture.routes import restore
from attnflow.errors import InputError

if TYPE_CHECKING:
    from attnflow.model import Model

Floats = NDArray[np.float64]

VERSIONS = {"flashtrace": "0.1.1", "at2": "0.0.1", "context-cite": "0.0.4", "captum": "0.9.0", "inseq": "0.7.1"}
"""The versions that were run, by PyPI name."""

IMPORTS = {
    "flashtrace": ("spacy", "wordfreq", "matplotlib", "seaborn"),
    "at2": ("spacy", "nltk", "pandas", "datasets"),
    "context-cite": ("spacy", "nltk", "pandas", "datasets", "sklearn"),
    "captum": ("matplotlib", "mpl_toolkits"),
    "inseq": ("matplotlib", "mpl_toolkits"),
}
"""Imports that are not needed for scores (plots, tables, text splitting), or that have a working stand-in."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Absent:
    """Anything from a package that is not installed: it can be named, called and set, but is not a number or list."""

    def __call__(self, *values: Any, **options: Any) -> Absent:
        return self

    def __or__(self, other: Any) -> Absent:
        return self

    __ror__ = __or__  # a type in an annotation

    def __setitem__(self, key: str, value: Any) -> None:
        """Ignore a setting."""

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class Dataset:
    """The part of `datasets.Dataset` that a batch loader uses: columns of one length, and rows by number."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self.columns = columns

    @classmethod
    def from_dict(cls, columns: Mapping[str, Sequence[Any]]) -> Dataset:
        return cls(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {name: values[row] for name, values in self.columns.items()}


class StandardScaler:
    """`sklearn.preprocessing.StandardScaler`: columns of mean 0 and deviation 1; a constant column keeps its scale."""

    mean_: Floats
    scale_: Floats

    def fit(self, X: Floats) -> StandardScaler:
        values = np.asarray(X, np.float64)
        self.mean_, deviation = values.mean(0), values.std(0)
        self.scale_ = np.where(deviation > 0, deviation, 1.0)
        return self

    def transform(self, X: Floats) -> Floats:
        return (np.asarray(X, np.float64) - self.mean_) / self.scale_


class Lasso:
    """`sklearn.linear_model.Lasso`: minimizes ``|y - b - X w|² / 2n + alpha |w|_1`` by coordinate descent from w = 0.

    It stops where scikit-learn does, at a duality gap of 1e-4 |y|²: with fewer ablations than units many weights are
    nearly optimal, and another stop would give others.
    """

    TOLERANCE, ROUNDS = 1e-4, 1000

    def __init__(self, alpha: float = 1.0, random_state: int | None = None, fit_intercept: bool = True) -> None:
        self.alpha, self.fit_intercept = alpha, fit_intercept
        self.coef_: Floats = np.zeros(0)
        self.intercept_ = 0.0

    def fit(self, X: Floats, y: Floats) -> Lasso:
        values, target = np.asarray(X, np.float64), np.asarray(y, np.float64)
        middle, level = (values.mean(0), target.mean()) if self.fit_intercept else (np.zeros(values.shape[1]), 0.0)
        columns, outputs = values - middle, target - level
        penalty, rest = self.alpha * len(target), outputs.copy()
        sizes, weights = (columns**2).sum(0), np.zeros(values.shape[1])
        for _ in range(self.ROUNDS):
            before = weights.copy()
            for j in np.flatnonzero(sizes):
                pull = columns[:, j] @ rest + sizes[j] * weights[j]
                weight = np.sign(pull) * max(abs(pull) - penalty, 0.0) / sizes[j]
                rest -= columns[:, j] * (weight - weights[j])
                weights[j] = weight
            step = np.abs(weights - before).max(initial=0.0)
            if step <= self.TOLERANCE * np.abs(weights).max(initial=0.0):
                largest = np.abs(columns.T @ rest).max(initial=0.0)
                share = min(1.0, penalty / largest) if largest else 1.0
                gap = (1 + share**2) / 2 * (rest @ rest) + penalty * np.abs(weights).sum() - share * (rest @ outputs)
                if gap <= self.TOLERANCE * (outputs @ outputs):
                    break
        self.coef_, self.intercept_ = weights, float(level - middle @ weights)
        return self


class Pipeline:
    """`sklearn.pipeline.make_pipeline(scaler, model)`."""

    def __init__(self, scaler: StandardScaler, model: Lasso) -> None:
        self.scaler, self.model = scaler, model

    def fit(self, X: Floats, y: Floats) -> Pipeline:
        self.model.fit(self.scaler.fit(X).transform(X), y)
        return self


WORKING: dict[str, dict[str, Any]] = {
    "datasets": {"Dataset": Dataset},
    "sklearn.preprocessing": {"StandardScaler": StandardScaler},
    "sklearn.linear_model": {"Lasso": Lasso},
    "sklearn.pipeline": {"make_pipeline": Pipeline},
}
"""Stand-ins that compute, because scores need them."""


class StandIn(ModuleType):
    """A module with the names it was made with, and `Absent` for any other."""

    def __getattr__(self, name: str) -> Any:
        return getattr(Absent(), name)


class StandIns(MetaPathFinder, Loader):
    """Finds a stand-in for these packages and all their modules."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def owns(self, name: str) -> bool:
        return name.partition(".")[0] in self.packages

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if self.owns(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(WORKING.get(module.__name__, {}))


@contextmanager
def stand_ins(packages: Sequence[str]) -> Iterator[list[str]]:
    """Provide a stand-in inside the block for each of these that is not installed. Yields their names."""
    absent = [name for name in packages if name not in sys.modules and importlib.util.find_spec(name) is None]
    finder = StandIns(absent)
    sys.meta_path.insert(0, finder)
    try:
        yield absent
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.owns(name)]:
            del sys.modules[name]


def package(name: str, *modules: str) -> list[Any]:
    """Return modules of a rival's package, named as on PyPI.

    Raises:
        InputError: it is not installed.
    """
    # it checks what is installed only once, so before there are stand-ins
    importlib.import_module("transformers.generation")
    top = name.replace("-", "_")
    with stand_ins(IMPORTS[name]), quiet():
        try:
            return [importlib.import_module(module) for module in (top, *modules)]
        except ModuleNotFoundError as e:
            wanted = f"{name}=={VERSIONS[name]}" if e.name == top else str(e.name)
            raise InputError(
                f"{name}=={VERSIONS[name]} cannot be imported, because {e.name} is not installed: add a folder to "
                f"PYTHONPATH made by `pip install --no-deps --target FOLDER {wanted}` (docs/evaluation.md)"
            ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, progress bars and output of other packages."""
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def lent(model: Model, attention: str | None = None) -> Iterator[Any]:
    """Lend the transformers model to a rival: quietly, with a seed, without weight gradients.

    Afterwards its attention implementation, mode, gradients, hooks, attributes and configuration are restored, and so
    are the random numbers.

    attention: such as "eager", for a rival that reads attention weights from the model; by default the model's own.
    """
    module: Any = model.model
    name = module.config._attn_implementation
    # transformers marks modules that have its hooks: restore marks and hooks together
    attributes = [(vars(thing), dict(vars(thing))) for thing in (module.config, *module.modules())]
    flags = [(weight, weight.requires_grad, weight.grad) for weight in module.parameters()]
    hooks = [(getattr(part, hook), dict(getattr(part, hook))) for part in module.modules() for hook in HOOKS]
    try:
        restore(module)  # a trace leaves our own attention function in place
        if attention is not None:
            module.set_attn_implementation(attention)
        module.eval().requires_grad_(False)
        with quiet(), seeded(model.device), torch.enable_grad():
            yield module
    finally:
        for current, content in (*attributes, *hooks):
            current.clear()
            current.update(content)
        for weight, flag, gradient in flags:
            weight.requires_grad_(flag).grad = gradient
        module.set_attn_implementation(name)


@contextmanager
def seeded(device: torch.device) -> Iterator[None]:
    """Use a fixed random seed inside the block; afterwards restore the caller's random state."""
    numpy_state, state = np.random.get_state(), random.getstate()  # noqa: NPY002  # rivals draw from these
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            np.random.seed(0)  # noqa: NPY002
            random.seed(0)
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(state)
