"""``celery -A app opendata``: the app's broker from the command line. Celery finds it by its entry point."""

from __future__ import annotations

from typing import Any

import click
from celery.exceptions import ImproperlyConfigured

from ..client.maintenance import DEFAULT_TIMEOUT_SECONDS
from ..errors import ConnectionLost, OpenDataError

_DUTIES = ("route", "expire_leases", "collect")
_json_option = click.option("-j", "--json", "as_json", is_flag=True, help="print the report as JSON")


@click.group("opendata")
def opendata() -> None:
    """The app's broker: what it holds, and its maintenance."""


@opendata.command()
@_json_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show queues, depths, what is in flight, consumers.

    Exits with 1 when no broker runs; it is not started.
    """
    from ..status import print_report

    try:
        report = _read_report(ctx.obj.app)
    except (OpenDataError, ImproperlyConfigured) as exc:
        raise click.ClickException(str(exc)) from exc
    print_report(report, as_json=as_json)


@opendata.command()
@click.argument("duties", metavar="[DUTY]...", nargs=-1, type=click.Choice(_DUTIES))
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=DEFAULT_TIMEOUT_SECONDS,
    show_default=True,
    help="seconds to wait for the report",
)
@_json_option
@click.pass_context
def maintain(ctx: click.Context, duties: tuple[str, ...], timeout: float, as_json: bool) -> None:
    """Do the broker's maintenance now and show what was done.

    A DUTY is one of route, expire_leases and collect; all are done when none is named. A broker in a folder is
    started when none runs.
    """
    from ..status import print_maintenance
    from .maintenance import maintain_broker

    try:
        report = maintain_broker(ctx.obj.app, duties, timeout=timeout)
    except (OpenDataError, ImproperlyConfigured) as exc:
        raise click.ClickException(str(exc)) from exc
    print_maintenance(report, as_json=as_json)


def _read_report(app: Any) -> dict[str, Any]:
    """The report of the app's broker; of a list for failover, of the first that runs."""
    from ..client.options import Options
    from ..status import ask
    from ..transport.transport import address_of, options_of

    connection = app.connection_for_read()
    last: ConnectionLost | None = None
    for url in connection.alt or [None]:
        one = connection.clone(hostname=url, alternates=[]) if url is not None else connection
        if one.transport.driver_type != "opendata":
            raise ImproperlyConfigured(f"the app's broker is {one.as_uri()}: it is no opendata:// URL")
        options: Options = options_of(one)
        try:
            return ask(address_of(one), options)
        except ConnectionLost as exc:
            last = exc
    assert last is not None
    raise last
