"""A browser for a module's tests. Playwright holds the thread's event loop: such modules use no asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ..support.page import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; the test that needs it is slow."""
    with chromium() as found:
        yield found
