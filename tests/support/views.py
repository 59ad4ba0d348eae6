"""Every view of the page, and where it is in a shop."""

from __future__ import annotations

from collections.abc import Callable

from .shop import Shop

#: one entry a view, all of which axe-core checks and the pictures show; the path below the page's address
VIEWS: dict[str, Callable[[Shop], str]] = {
    "overview": lambda _shop: "",
    "queue": lambda _shop: "queue?name=billing&tab=failed",
    "running": lambda _shop: "queue?name=stock&tab=running",
}


def address(view: str, shop: Shop, site: str) -> str:
    """A view's address."""
    return site + VIEWS[view](shop)
