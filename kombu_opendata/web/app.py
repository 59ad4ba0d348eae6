"""ASGI app of the web UI: its views, its API, its static files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles

from ..errors import RequestError
from ..masking import Masking
from ..version import __version__
from .access.guard import Guard, is_api
from .access.headers import BodyLimit, SecurityHeaders
from .access.visitors import Visitors
from .api import (
    action_routes,
    attention_routes,
    exchange_routes,
    failure_routes,
    job_routes,
    message_routes,
    queue_routes,
    replay_routes,
    schedule_routes,
    session_routes,
    store_routes,
    worker_routes,
)
from .api.errors import RESPONSES, error_json
from .brokers import Brokers
from .error_handlers import answer_errors
from .error_reports import Answered
from .jobs import BackgroundJobs
from .live_updates import UpdatePace
from .pages import (
    dialogs,
    exchanges,
    failed,
    jobs,
    login,
    messages,
    overview,
    queue,
    replays,
    schedules,
    store,
    workers,
)  # fmt: skip
from .pages.errors import error_page
from .rendering import Renderer
from .settings import WebSettings
from .visit import Site

_ABOUT = """What the page shows and does, as JSON. Times are in ISO 8601 and UTC, sizes in bytes, and message ids are
whole numbers. Every error has the same form: `code`, `message`, `values` and `what_to_do`."""
PAGES = (
    dialogs,
    login,
    overview,
    queue,
    messages,
    failed,
    jobs,
    workers,
    exchanges,
    schedules,
    replays,
    store,
)
_API = (
    action_routes,
    attention_routes,
    queue_routes,
    message_routes,
    failure_routes,
    job_routes,
    worker_routes,
    exchange_routes,
    schedule_routes,
    replay_routes,
    store_routes,
    session_routes,
)


def create_app(settings: WebSettings | str) -> FastAPI:
    """Return an ASGI app, to be served alone or mounted in another one.

    Args:
        settings: the settings of the web UI, or only the broker's URL.
    """
    settings = WebSettings(settings) if isinstance(settings, str) else settings
    brokers = Brokers(settings)
    visitors = Visitors(settings, brokers, monotonic)
    site = Site(settings, brokers, Renderer(), Masking(settings.masked_names), BackgroundJobs(), visitors, UpdatePace())

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await site.jobs.close()
        await site.brokers.close()

    app = FastAPI(title="opendata-queue", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.site = site
    app.add_middleware(Guard, settings=settings, visitors=visitors, answer=_error)
    answer_errors(app, _error)  # the guard's errors, too
    app.add_middleware(BodyLimit, most=settings.body_bytes)
    app.add_middleware(SecurityHeaders)
    for page in PAGES:
        app.include_router(page.router)
    app.state.api = _api(site)
    app.mount("/api/v1", app.state.api)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), "static")
    return app


def _error(request: Request, said: Answered) -> Response:
    """Answer an error as a page, or as JSON below /api."""
    return (error_json if is_api(request.scope) else error_page)(request, said)


def _api(site: Site) -> FastAPI:
    api = FastAPI(
        title="opendata-queue",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        responses=RESPONSES,
        dependencies=[Depends(_refuse_unknown)],
    )
    api.state.site = site
    answer_errors(api, error_json)
    for part in _API:
        api.include_router(part.router)
    return api


async def _refuse_unknown(request: Request) -> None:
    """Reject a query parameter that the route does not have: a misspelt filter would otherwise return more results.

    Raises:
        RequestError: the text names the parameters that the route has.
    """
    if not request.query_params:
        return
    # The first description takes most of a second; a thread makes it, so that other requests do not wait.
    description = request.app.openapi_schema or await asyncio.to_thread(request.app.openapi)
    described = description["paths"][request.scope["route"].path][request.method.lower()]
    known = sorted(parameter["name"] for parameter in described.get("parameters", ()) if parameter["in"] == "query")
    for name in request.query_params:
        if name not in known:
            hint = f"choose from {', '.join(known)}" if known else "it has none"
            raise RequestError(f"there is no parameter {name!r:.100}: {hint}", name=name[:100])


def api_description() -> dict[str, Any]:
    """Return the OpenAPI description of the JSON API; no broker is contacted."""
    api: FastAPI = create_app("opendata:///nowhere").state.api
    return api.openapi()
