"""Celery apps: the one at ``module:attribute``, and one without settings."""

from __future__ import annotations

from functools import cache
from typing import Any

from celery import Celery
from celery.app.utils import find_app

import kombu_opendata  # noqa: F401 - makes the broker URL known

from ..errors import RequestError


def new_plain_app() -> Any:
    """An app without settings: tasks go to the queue ``celery``, as JSON. It does not connect."""
    return Celery("opendata-spark", broker="opendata+memory://none", set_as_current=False)


plain_app = cache(new_plain_app)


def load_app(path: str) -> Any:
    """The app at ``module:attribute``, found as ``celery -A`` finds it.

    Raises:
        RequestError: there is no such app.
    """
    try:
        return find_app(path)
    except (ImportError, AttributeError) as exc:
        raise RequestError(f"no Celery app at {path!r} ({exc}): ship its module with --py-files", app=path) from exc
