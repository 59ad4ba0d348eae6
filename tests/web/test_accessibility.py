"""axe-core finds nothing serious in any view, in light and dark, wide and narrow; and nothing is wider than a phone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..support.page import opened
from ..support.shop import Shop
from ..support.views import VIEWS, address

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.usefixtures("shop")
AXE = Path(__file__).parents[1] / "vendor" / "axe" / "axe.min.js"
SERIOUS = ("serious", "critical")


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_keeps_people_out(view: str, scheme: str, width: int, shop: Shop, site: str, browser: Browser) -> None:
    options: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}, "bypass_csp": True}
    with opened(browser, **options) as page:
        response = page.goto(address(view, shop, site))
        assert response is not None
        assert response.status == 200
        page.add_script_tag(path=AXE)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        told = [(one["id"], [node["html"] for node in one["nodes"]]) for one in found if one["impact"] in SERIOUS]
        assert told == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
