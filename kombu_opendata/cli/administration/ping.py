"""Command ``ping``: a check that a broker accepts this client and answers."""

from __future__ import annotations

import time

import click

from ...configuration.kinds import Seconds
from ..exit_codes import NOT_NOW, Command, CommandError
from ..option_types import Bounded
from ..target import Target, call_options
from ..terminal.output import print_json, say


@click.command(cls=Command, epilog="Example: opendata-queue ping opendata://queue.example.org --timeout 2")
@click.argument("place", required=False, metavar="[URL|FOLDER]")
@click.option(
    "--timeout",
    type=Bounded(Seconds(above=0)),
    default=5,
    show_default=True,
    help="how long all of it may take",
)
@click.option("--allow-standby", is_flag=True, help="a standby that answers is success, too: for health checks")
@call_options
def ping(place: str | None, timeout: float, allow_standby: bool, target: Target, as_json: bool) -> None:
    """Connect to a broker, log in and wait for one answer.

    The broker answers when its store has accepted all previous writes. The command never starts a broker. The exit code
    is 3 if no broker is there, 1 if it refuses the login, and 5 if it is a standby or does not answer in time.
    """
    from ...errors import NotActive
    from ...protocol.messages.queue_messages import Ping

    target = target.or_at(place)
    began = time.monotonic()
    try:
        with target.connection(looks=True, timeout=timeout) as connection:
            connected = time.monotonic()
            connection.call(Ping(0), max(began + timeout - connected, 0.001))
            answered = time.monotonic()
    except TimeoutError as exc:
        text = f"the broker let this client in but has not answered within {timeout:g} s: does its store take writes?"
        raise CommandError(text, NOT_NOW) from exc
    except NotActive as exc:
        if not allow_standby:
            raise
        if as_json:
            print_json({"standby": True, "active": exc.active})
        else:
            say(f"a standby answered; active is {exc.active or 'no broker that it knows of'}")
        return
    if as_json:
        print_json({"connect_seconds": connected - began, "answer_seconds": answered - connected})
    else:
        say(f"connected in {1000 * (connected - began):.1f} ms, answered in {1000 * (answered - connected):.1f} ms")
