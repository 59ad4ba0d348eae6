"""Settings of the result backend, from those of a Celery app, and reports on settings without effect."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import filter as matches
from typing import Any

from celery.app.defaults import DEFAULTS
from celery.exceptions import ImproperlyConfigured

from ..client.connection_options import (
    BACKEND_OPTIONS,
    SECONDS,
    Options,
    check_names,
    read_values,
    report_tls,
    report_unused,
)
from ..client.foreign_options import UNUSED_BY_RESULTS
from ..errors import InvalidURL, RequestError
from ..url import Address, parse

_PLACE = "result_backend_transport_options"


def report_settings(conf: Any, unused: Mapping[str, str]) -> None:
    """Report the settings of an app that are not Celery's defaults and have no effect.

    Args:
        unused: patterns of names, and the replacement of each.
    """
    for pattern, instead in unused.items():
        for name in matches(DEFAULTS, pattern):
            if conf.get(name) != DEFAULTS[name]:
                report_unused(name, instead)


def broker_urls(conf: Any) -> str:
    """Return the URLs of the broker that the app publishes to, separated by ``;``."""
    urls = conf.broker_write_url or conf.broker_url
    return urls if isinstance(urls, str) else ";".join(urls or ())


def broker_url(conf: Any) -> str:
    """Return the app's broker URL."""
    url = broker_urls(conf)
    if not url.startswith(("opendata://", "opendatas://", "opendata+memory://")):
        raise ImproperlyConfigured(
            "result_backend 'opendata' takes the broker's URL, which is not an opendata:// URL here: "
            "write result_backend = 'opendata:///absolute/folder'"
        )
    return url


def addresses(url: str, setting: str = "result_backend") -> list[Address]:
    """Return the addresses in a list of URLs, separated by ``;``."""
    try:
        return [parse(part) for part in url.split(";") if part]
    except InvalidURL as exc:
        raise ImproperlyConfigured(f"{setting}: {exc}") from exc


def milliseconds(seconds: float | None, setting: str) -> int:
    """Return a time to live in ms; None and 0 mean no expiry."""
    if seconds is not None and seconds < 0:
        raise ImproperlyConfigured(f"{setting} is {seconds:g} seconds; 0 or None keeps results without expiry")
    return int(1000 * seconds) if seconds else 0


def options(conf: Any, url: str) -> Options:
    """Return the settings of the backend's connection; if the URL is the broker's, the broker's are the defaults."""
    configured = conf.get(_PLACE) or {}
    report_settings(conf, UNUSED_BY_RESULTS)
    tls_setting = f"{_PLACE}: 'ssl'" if "ssl" in configured else "broker_use_ssl"
    try:
        check_names(_PLACE, configured, BACKEND_OPTIONS)
        if url == conf.broker_url:
            configured = {**(conf.broker_transport_options or {}), "ssl": conf.broker_use_ssl, **configured}
    except RequestError as exc:
        raise ImproperlyConfigured(exc.text) from exc
    return connection_options(_PLACE, configured, url, tls_setting)


def connection_options(place: str, configured: dict[str, Any], url: str, tls_setting: str) -> Options:
    """Return the settings of a connection from the options of the setting ``place``."""
    try:
        values = read_values(place, configured)
    except RequestError as exc:
        raise ImproperlyConfigured(exc.text) from exc
    same = (*SECONDS, "connect_timeout", "broker_options")
    settings = Options(
        name=str(values.get("consumer_name", "")),
        tls=values.get("ssl") or None,
        **{name: values[name] for name in same if name in values},
    )
    report_tls(tls_setting, settings, addresses(url))
    return settings
