"""Commands ``queue alter``, ``queue pause`` and ``queue resume``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ..exit_codes import Command, confirm
from ..hints import next_command
from ..option_types import headers_of
from ..target import Target, call_options, queue_argument, yes_option
from ..terminal.output import local, note, print_json, say
from .argument_options import argument_options, whole_seconds

if TYPE_CHECKING:
    from ...queue_client.queue_models import QueueAlteration


def _complete_arguments(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from ...protocol.queue_arguments import KNOWN

    return [argument.name for argument in KNOWN if not argument.cannot_alter and argument.name.startswith(incomplete)]


@click.command(cls=Command, epilog="Example: opendata-queue queue alter mails x-max-length=1000 --unset x-message-ttl")
@queue_argument
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...", shell_complete=_complete_arguments)
@argument_options
@click.option("--unset", multiple=True, metavar="NAME", shell_complete=_complete_arguments,
              help="return this argument to its declared value; may be repeated")  # fmt: skip
@click.option("--reset", is_flag=True, help="return all arguments to their declared values first")
@click.option("--force", is_flag=True, help="go ahead even if that deletes messages")
@click.option("--dry-run", is_flag=True, help="only say what it would do")
@yes_option
@call_options
def alter(
    queue: str, arguments: tuple[str, ...], unset: tuple[str, ...], reset: bool, force: bool, dry_run: bool, yes: bool,
    target: Target, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Change arguments of a queue, over those that apps declare.

    NAME=VALUE is an x- argument, such as x-max-length=1000; NAME:=null removes a declared one. Apps may continue to
    declare the queue with the old arguments, or with the new ones. docs/queue-arguments.md lists the arguments that can
    be altered, and the effect on waiting messages.
    """
    from ...queue_client.queue_options import QueueOptions

    whole_seconds(given)
    options = QueueOptions(arguments=_typed(arguments), **given)
    with target.client() as client:
        alteration = client.alter(queue, options, unset=unset, reset=reset, force=force, dry_run=True)
        changes = list(_changes(alteration))
        asks = not (yes or dry_run) and bool(changes)
        if asks:
            for text in (*changes, *alteration.notes):
                note(text)
            confirm(f"Alter queue {queue!r}?", yes)
        if not dry_run:
            alteration = client.alter(queue, options, unset=unset, reset=reset, force=force)
    if as_json:
        print_json(alteration)
        return
    if not asks:
        for text in (*changes, *alteration.notes):
            say(text)
    say(f"queue {queue!r} {_ending(changes, dry_run)}")


def _ending(changes: list[str], dry_run: bool) -> str:
    if not changes:
        return "has these arguments already"
    return "was not changed (dry run)" if dry_run else "altered"


def _typed(arguments: Iterable[str]) -> dict[str, Any]:
    """Return the arguments in ``name=value``, converted to the argument's type, and in ``name:=JSON``."""
    from ...protocol.queue_arguments import BY_NAME

    values = headers_of(arguments, "argument")
    for name, value in values.items():
        definition = BY_NAME.get(name)
        if definition is None or not isinstance(value, str):
            continue
        if definition.kind is int and value.removeprefix("-").isdecimal():
            values[name] = int(value)
        elif definition.kind is bool and value in ("true", "false"):
            values[name] = value == "true"
    return values


def _changes(would: QueueAlteration) -> Iterable[str]:
    """Yield a line for each argument whose value changes."""
    for name in sorted(would.before.keys() | would.after.keys()):
        before, after = would.before.get(name), would.after.get(name)
        if before != after:
            declared = f" (declared: {would.declared[name]})" if name in would.declared else ""
            yield f"{name}: {_shown(before)} -> {_shown(after)}{declared}"


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


@click.command(cls=Command, epilog="Example: opendata-queue queue pause mails")
@queue_argument
@click.option("--publish", "publishes", is_flag=True, help="refuse publishes as well")
@call_options
def pause(queue: str, publishes: bool, target: Target, as_json: bool) -> None:
    """Pause a queue: its consumers get nothing until it is resumed.

    They may finish the messages that they hold. Publishes continue; with --publish, they are refused, and producers
    that retry succeed after the queue is resumed. A paused queue stays paused when the broker restarts.
    """
    with target.client() as client:
        paused = client.pause(queue, publishes=publishes)
    if as_json:
        print_json(paused)
        return
    scope = "deliveries and publishes" if paused.publishes else "deliveries"
    already = "" if paused.changed else " already"
    say(f"queue {queue!r} is{already} paused ({scope}), since {local(paused.since)}")
    note(f"to resume: {next_command('queue resume', queue)}")


@click.command(cls=Command, epilog="Example: opendata-queue queue resume mails")
@queue_argument
@click.option("--publish-only", "publishes_only", is_flag=True, help="only take publishes again")
@call_options
def resume(queue: str, publishes_only: bool, target: Target, as_json: bool) -> None:
    """Resume a queue that was paused."""
    with target.client() as client:
        paused = client.resume(queue, publishes_only=publishes_only)
    if as_json:
        print_json(paused)
    elif not paused.changed:
        say(f"queue {queue!r} was not paused" if not paused.deliveries else f"queue {queue!r} took publishes already")
    else:
        say(f"queue {queue!r} takes publishes again" if paused.deliveries else f"queue {queue!r} is resumed")
