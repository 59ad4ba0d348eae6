"""Composes the page: its views, its API, its files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from ..version import __version__
from .api import actions as actions_api
from .api import attention as attention_api
from .api import queues as queues_api
from .brokers import Brokers
from .pages import dialogs, overview, queue
from .rendering import Renderer
from .settings import WebSettings
from .visit import Site

_PAGES = (
    dialogs,
    overview,
    queue,
)
_API = (actions_api, attention_api, queues_api)


def create_app(settings: WebSettings | str) -> FastAPI:
    """An ASGI app, to be served alone or mounted in another one.

    Args:
        settings: the page's settings, or only the broker's URL.
    """
    settings = WebSettings(settings) if isinstance(settings, str) else settings
    site = Site(settings, Brokers(settings), Renderer())

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await site.brokers.close()

    app = FastAPI(title="opendata-queue", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.site = site
    for page in _PAGES:
        app.include_router(page.router)
    app.mount("/api/v1", _api(site))
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), "static")
    return app


def _api(site: Site) -> FastAPI:
    api = FastAPI(title="opendata-queue", version=__version__, docs_url=None, redoc_url=None)
    api.state.site = site
    for part in _API:
        api.include_router(part.router)
    return api
