"""Share one browser, and the pages that several tests open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.browser import chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return saved(name, page), which writes the page to disk once."""
    from helpers import page_cases

    folder = tmp_path_factory.mktemp("saved")
    return lambda name, page: page_cases.save(folder, name, page)


def made(name: str) -> Any:
    @pytest.fixture(scope="session", name=name)
    def case(tmp_path_factory: pytest.TempPathFactory) -> Any:
        from helpers import page_cases  # Imported late: it needs torch, which the tests of the documentation do not.

        return getattr(page_cases, name)(tmp_path_factory.mktemp(name))

    return case


names = ("sentence", "pieces", "decoder", "translation", "images", "photo", "picture", "hostile")
sentence, pieces, decoder, translation, images, photo, picture, hostile = map(made, names)
