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
from .access.authentication import Visitors
from .access.guard import Guard, is_api
from .access.headers import BodyLimit, SecurityHeaders
from .error_reports import RESPONSES, Fault, answer_errors, error_json
from .jobs import BackgroundJobs
from .live_updates import UpdatePace
from .rendering import Renderer
from .request_context import Site
from .settings import WebSettings
from .user_clients import Brokers
from .views import (
    actions,
    exchanges,
    failed,
    login,
    message,
    overview,
    queue,
    replays,
    schedules,
    spark_jobs,
    store,
    workers,
)
from .views.view import error_page

_ABOUT = """The data and the actions of the web UI as JSON. Times are in ISO 8601 and UTC, sizes in bytes, and message
ids are whole numbers. Every error has the same form: `code`, `message`, `values` and `what_to_do`."""
_SUBJECTS = (
    actions,
    overview,
    queue,
    message,
    failed,
    workers,
    exchanges,
    schedules,
    replays,
    spark_jobs,
    store,
    login,
)
VIEWS = (*(subject.VIEWS for subject in _SUBJECTS), actions.JOBS)


def create_app(settings: WebSettings | str) -> FastAPI:
    """Return an ASGI app, to be served alone or mounted in another one.

    Args:
        settings: the settings of the web UI, or only the broker's URL.
    """
    settings = WebSettings(settings) if isinstance(settings, str) else settings
    brokers = Brokers(settings)
    visitors = Visitors(settings, brokers, monotonic)
    renderer = Renderer(settings.trace_url)
    masking = Masking(settings.masked_names)
    site = Site(settings, brokers, renderer, masking, BackgroundJobs(), visitors, UpdatePace())

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await site.jobs.close()
        await site.brokers.close()

    app = FastAPI(title="opendata-queue", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    api = FastAPI(
        title="opendata-queue",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        responses=RESPONSES,
        dependencies=[Depends(_refuse_unknown)],
    )
    app.state.site = api.state.site = site
    app.state.api = api
    app.add_middleware(Guard, settings=settings, visitors=visitors, answer=_error)
    answer_errors(app, _error)  # the guard's errors, too
    answer_errors(api, error_json)
    app.add_middleware(BodyLimit, most=settings.body_bytes)
    app.add_middleware(SecurityHeaders)
    for views in VIEWS:
        app.include_router(views.pages)
        api.include_router(views.api)
    app.mount("/api/v1", api)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), "static")
    return app


def _error(request: Request, fault: Fault) -> Response:
    """Answer an error as a page, or as JSON below /api."""
    return (error_json if is_api(request.scope) else error_page)(request, fault)


async def _refuse_unknown(request: Request) -> None:
    """Raise RequestError for a parameter that the route does not have: a misspelt filter would return more results."""
    if not request.query_params:
        return
    # The first description takes most of a second; a thread makes it, so that other requests do not wait.
    description = request.app.openapi_schema or await asyncio.to_thread(request.app.openapi)
    described = description["paths"].get(request.scope["route"].path, {}).get(request.method.lower(), {})
    known = sorted(parameter["name"] for parameter in described.get("parameters", ()) if parameter["in"] == "query")
    for name in request.query_params:
        if name not in known:
            hint = f"choose from {', '.join(known)}" if known else "it has none"
            raise RequestError(f"there is no parameter {name!r:.100}: {hint}", name=name[:100])


def api_description() -> dict[str, Any]:
    """Return the OpenAPI description of the JSON API; no broker is contacted."""
    api: FastAPI = create_app("opendata:///nowhere").state.api
    return api.openapi()
