"""The result backend's settings, from those of a Celery app."""

from __future__ import annotations

from typing import Any

from celery.exceptions import ImproperlyConfigured

from ..client.connection_options import SECONDS, Options, check_broker_options
from ..errors import InvalidURL, RequestError
from ..url import Address, parse


def broker_url(conf: Any) -> str:
    """The app's broker URL."""
    given = conf.broker_write_url or conf.broker_url
    url = given if isinstance(given, str) else ";".join(given or ())
    if not url.startswith(("opendata://", "opendatas://", "opendata+memory://")):
        raise ImproperlyConfigured(
            "result_backend 'opendata' takes the broker's URL, which is not an opendata:// URL here: "
            "write result_backend = 'opendata:///absolute/folder'"
        )
    return url


def addresses(url: str) -> list[Address]:
    """The addresses in a list of URLs, separated by ``;``."""
    try:
        return [parse(part) for part in url.split(";") if part]
    except InvalidURL as exc:
        raise ImproperlyConfigured(f"result_backend: {exc}") from exc


def milliseconds(seconds: float | None, setting: str) -> int:
    """A time to live; None and 0 mean for ever."""
    if seconds is not None and seconds < 0:
        raise ImproperlyConfigured(f"{setting} is {seconds:g} seconds; 0 or None keeps results for ever")
    return int(1000 * seconds) if seconds else 0


def options(conf: Any, url: str) -> Options:
    """The settings of the backend's connection; where the URL is the broker's, the broker's are the defaults."""
    given = dict(conf.get("result_backend_transport_options") or {})
    if url == conf.broker_url:
        given = {**(conf.broker_transport_options or {}), "ssl": conf.broker_use_ssl, **given}
    try:
        numbers: dict[str, Any] = {
            name: float(given[name]) for name in (*SECONDS, "connect_timeout") if given.get(name) is not None
        }
    except (TypeError, ValueError) as exc:
        raise ImproperlyConfigured(f"result_backend_transport_options: not a number of seconds: {exc}") from exc
    try:
        broker_options = check_broker_options(given.get("broker_options"))
    except RequestError as exc:
        raise ImproperlyConfigured(f"result_backend_transport_options: {exc}") from exc
    name = str(given.get("consumer_name") or "")
    return Options(name=name, tls=given.get("ssl") or None, broker_options=broker_options, **numbers)
