"""One Spark session for all tests here: it takes ten seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from ..support.spark import new_session

#: PySpark 4.1 leaves the sockets of its results to the garbage collector
_OPEN_SOCKETS = "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if pyspark.__version__.startswith("4.1."):
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.filterwarnings(_OPEN_SOCKETS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session with two cores that tries each task three times."""
    session = new_session(tmp_path_factory.mktemp("java"))
    yield session
    session.stop()
