"""Stores that tests copy before they damage them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.plain_store import PlainStore
from tests.support.rich_store import Ids, build

Copy = Callable[[], Path]


class Rich:
    """A store with everything in it; ``plain`` has its records."""

    def __init__(self, root: Path, *, tail: bool) -> None:
        self.root = root
        self.ids: Ids = build(root, tail=tail)
        self.plain = PlainStore(root)


@pytest.fixture(scope="session")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Rich:
    """Closed cleanly. Not to be changed: take a ``copy_of``."""
    return Rich(tmp_path_factory.mktemp("rich") / "store", tail=False)


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Rich:
    """As after a kill -9: a part of it is in the journal only. Not to be changed."""
    return Rich(tmp_path_factory.mktemp("killed") / "store", tail=True)


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Rich], Path]:
    """A copy of a store that a test may change."""

    def copy(store: Rich) -> Path:
        target = tmp_path / "copy"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(store.root, target)
        return target

    return copy
