"""Make the pictures of docs/web.md: ``make pictures``. Each view of a shop with trouble, as Chromium shows it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support.page import PageServer, chromium, opened
from ..support.processes import children
from ..support.shop import Shop, open_shop
from ..support.views import VIEWS, address

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "web"
WIDE: dict[str, Any] = {"viewport": {"width": 1200, "height": 780}, "color_scheme": "light", "timezone_id": "UTC"}
#: more pictures of the first view: by the file's name
ALSO: dict[str, dict[str, Any]] = {
    "overview-dark": WIDE | {"color_scheme": "dark"},
    "overview-phone": WIDE | {"viewport": {"width": 360, "height": 780}},
}
#: of a long list, its beginning is enough
TALLEST = 1400
#: for charts that show more than a few points
SECONDS_OF_TRAFFIC = 90


def main() -> None:
    """Write them all."""
    folder = Path(tempfile.mkdtemp(prefix="odq-", dir="/tmp"))
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        with children() as started, open_shop(f"opendata://{folder}/shop", folder) as shop:
            shop.trade(SECONDS_OF_TRAFFIC)
            started.add(server := PageServer(folder, shop.url))
            with chromium() as browser:
                for view in VIEWS:
                    picture(browser, view, view, shop, server.url, WIDE)
                for name, options in ALSO.items():
                    picture(browser, name, "overview", shop, server.url, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def picture(browser: Browser, name: str, view: str, shop: Shop, site: str, options: dict[str, Any]) -> None:
    """One view, as tall as it is, up to a limit."""
    with opened(browser, **options) as page:
        page.goto(address(view, shop, site))
        page.wait_for_selector("#content h1")
        page.wait_for_timeout(500)  # charts are drawn when the page is there
        height = min(page.evaluate("document.documentElement.scrollHeight"), TALLEST)
        clip = {"x": 0, "y": 0, "width": options["viewport"]["width"], "height": height}
        page.screenshot(path=FOLDER / f"{name}.png", full_page=True, clip=clip)  # type: ignore[arg-type]
        print(f"{name}.png")


if __name__ == "__main__":
    main()
