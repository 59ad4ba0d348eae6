"""``web``: the page."""

from __future__ import annotations

import sys

import click

from ..exit_codes import Command, Failure
from ..target import Target, target_options
from ..terminal.output import say


@click.command(cls=Command, epilog="Example: opendata-queue web --url /var/lib/app-queue --listen 127.0.0.1:8080")
@click.option(
    "--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT", help="where the page is served"
)
@click.option("--read-only", is_flag=True, help="show everything, change nothing")
@target_options
def web(listen: str, read_only: bool, target: Target) -> None:
    """Serve a page on which operators see and mend what is wrong.

    The page is a process of its own and a client of the broker. It needs the extra: pip install 'kombu-opendata[web]'.
    """
    try:
        from ...web.server import serve
        from ...web.settings import WebSettings
    except ModuleNotFoundError as exc:
        raise Failure(f"the page needs {exc.name}: pip install 'kombu-opendata[web]'") from exc
    host, _, port = listen.rpartition(":")
    place = target.place
    shown = place.address.as_uri()
    settings = WebSettings(place.address.as_uri(include_secret=True), place.options, read_only)
    try:
        serve(settings, host.strip("[]"), int(port), lambda at: _announce(f"{at} shows {shown}; end it with Ctrl-C"))
    except OSError as exc:
        raise Failure(f"can't listen on {listen}: {exc.strerror or exc}") from exc


def _announce(text: str) -> None:
    say(text)
    sys.stdout.flush()
