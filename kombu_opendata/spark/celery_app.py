"""Celery apps: the app at ``module:attribute``, and an app without settings."""

from __future__ import annotations

from functools import cache
from typing import Any

from celery import Celery
from celery.app.utils import find_app

import kombu_opendata  # noqa: F401 - makes the broker URL known

from ..errors import RequestError


def new_plain_app() -> Any:
    """Return an app without settings: tasks go to the queue ``celery``, as JSON. It does not connect."""
    return Celery("opendata-spark", broker="opendata+memory://none", set_as_current=False)


plain_app = cache(new_plain_app)


def load_app(path: str) -> Any:
    """Return the app at ``module:attribute``, looked up as in ``celery -A``.

    Raises:
        RequestError: there is no such app.
    """
    try:
        return find_app(path)
    except (ImportError, AttributeError) as exc:
        raise RequestError(f"no Celery app at {path!r} ({exc}): ship its module with --py-files", app=path) from exc
