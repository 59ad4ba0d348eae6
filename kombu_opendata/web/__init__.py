"""Web UI: an ASGI app that is a client of the broker, with a JSON API (extra ``web``)."""

from __future__ import annotations

from .app import create_app

__all__ = ["create_app"]
