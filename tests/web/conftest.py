"""A browser, a broker and its web UI for a module's tests.

Playwright holds the thread's event loop: modules with a browser use no asyncio.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from kombu_opendata import QueueClient

from ..support.page import PageServer, chromium
from ..support.processes import children
from ..support.shop import Shop, open_shop

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; the test that needs it is slow."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def url(module_store_folder: Path) -> str:
    """The URL of the module's embedded broker."""
    return f"opendata://{module_store_folder}"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[QueueClient]:
    """A client of the module's broker."""
    with QueueClient(url) as found:
        yield found


@pytest.fixture(scope="module")
def shop(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop with trouble on the module's broker."""
    with open_shop(url, tmp_path_factory.mktemp("shop")) as found:
        yield found


@pytest.fixture(scope="module")
def server(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """The web UI of the module's broker."""
    with children() as started:
        started.add(found := PageServer(tmp_path_factory.mktemp("page"), url))
        yield found
        found.terminate()  # in order: what a killed process has run is not measured


@pytest.fixture(scope="module")
def site(server: PageServer) -> str:
    """The address of the web UI, for a browser."""
    return server.url


@pytest.fixture(scope="module")
def http(server: PageServer) -> Iterator[httpx.Client]:
    """A client of the web UI."""
    with httpx.Client(base_url=server.url, timeout=60) as found:
        yield found
