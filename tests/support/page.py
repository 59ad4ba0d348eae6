"""The page as a process, and a browser that looks at it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .processes import Child, tail, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

COMMAND = Path(sys.executable).with_name("opendata-queue")
#: Chromium as root in a container, without what it asks of the network by itself
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip

#: how long Playwright waits; its own five seconds for an expectation are few on a busy machine
_PATIENCE_MS = 60_000


class PageServer(Child):
    """``opendata-queue web`` on a free port of loopback. ``url`` ends with a slash."""

    def __init__(self, folder: Path, broker_url: str, *options: str, env: dict[str, str] | None = None) -> None:
        line = [str(COMMAND), "web", "--url", broker_url, "--listen", "127.0.0.1:0", "--start", *options]
        super().__init__(line, folder / "page.log", cwd=folder, env=env)
        self.url = ""
        wait_until(self._announced, 60, lambda: f"the page listens:\n{tail(self.log)}")

    def _announced(self) -> bool:
        self.check()
        found = re.search(r"https?://\S+:\d+/", self.log.read_text(errors="replace"))
        self.url = found[0] if found else ""
        return bool(found)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium. Without one a test is skipped, but fails where ``CI`` is set."""
    from playwright.sync_api import expect, sync_playwright

    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("there is no chromium")
        pytest.skip("there is no chromium: apt-get install chromium")
    expect.set_options(timeout=_PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS), timeout=2 * _PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[Page]:
    """A tab in a context of its own. At the end, nothing may have gone wrong in it: no error, nothing refused."""
    context = browser.new_context(**options)
    context.set_default_timeout(_PATIENCE_MS)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    try:
        yield page
        assert wrong == []
    finally:
        context.close()
