"""One Spark session for all tests here: it takes ten seconds to start."""

from __future__ import annotations

import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from ..support.spark import new_session

#: PySpark 4.1 leaves the sockets of its results to the garbage collector; no version says that it knows pandas 3
_SPARKS_OWN = (
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning",
    "ignore:PySpark does not yet fully support pandas:FutureWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    filters = _SPARKS_OWN if pyspark.__version__.startswith("4.1.") else _SPARKS_OWN[1:]
    folder = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(folder):
            for warning in filters:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of this version, with no packages."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python3"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session with two cores that tries each task three times."""
    session = new_session(tmp_path_factory.mktemp("java"))
    yield session
    session.stop()
