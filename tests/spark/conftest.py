"""One Spark session for all tests here: it takes ten seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ..support.spark import new_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session with two cores that tries each task three times."""
    session = new_session(tmp_path_factory.mktemp("java"))
    yield session
    session.stop()
