"""Commands ``queue alter``, ``queue pause`` and ``queue resume``, and the options for arguments of queues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ...json_values import plain
from ...protocol.queue_arguments import BY_NAME, KNOWN, Argument
from ..exit_codes import Command, confirm
from ..hints import next_command
from ..option_types import LENGTH, SELECTOR, arguments_of, parsed, with_options
from ..output import Reply, local, note
from ..target import changes, queue_argument, yes_option

if TYPE_CHECKING:
    from ...protocol.messages import QueueAltered
    from ...queue_client import QueueClient


def _option(argument: Argument) -> Any:
    name = argument.option
    kind: Any = LENGTH if argument.units_per_second else argument.kind
    if argument.choices:
        kind = click.Choice(argument.choices)
    if name == "filter":
        kind = SELECTOR
    metavar = argument.metavar if kind in (int, str) else None
    flag = f"--{name.removesuffix('_seconds').replace('_', '-')}"
    return click.option(flag, name, type=kind, metavar=metavar, help=argument.help)


#: the options of ``queue create`` and ``queue alter``
argument_options = with_options(*(_option(argument) for argument in KNOWN if argument.help))


def whole_seconds(values: dict[str, Any]) -> None:
    """Round the durations of arguments that have whole seconds."""
    for argument in KNOWN:
        if argument.units_per_second == 1 and values[argument.option] is not None:
            values[argument.option] = round(values[argument.option])


def _typed_arguments(texts: Iterable[str]) -> dict[str, Any]:
    """Return the arguments in ``name=value``, converted to the argument's type, and in ``name:=JSON``."""
    values = arguments_of(texts)
    for name, value in values.items():
        definition = BY_NAME.get(name)
        if definition is None or not isinstance(value, str):
            continue
        if definition.kind is int and value.removeprefix("-").isdecimal():
            values[name] = int(value)
        elif definition.kind is bool and value in ("true", "false"):
            values[name] = value == "true"
    return values


def _complete_arguments(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [argument.name for argument in KNOWN if not argument.cannot_alter and argument.name.startswith(incomplete)]


@click.command(cls=Command, epilog="Example: opendata-queue queue alter mails x-max-length=1000 --unset x-message-ttl")
@queue_argument
@click.argument(
    "arguments",
    nargs=-1,
    metavar="[NAME=VALUE]...",
    shell_complete=_complete_arguments,
    callback=parsed(_typed_arguments),
)
@argument_options
@click.option(
    "--unset",
    multiple=True,
    metavar="NAME",
    shell_complete=_complete_arguments,
    help="return this argument to its declared value; may be repeated",
)
@click.option("--reset", is_flag=True, help="return all arguments to their declared values first")
@click.option("--force", is_flag=True, help="go ahead even if that deletes messages")
@click.option("--dry-run", is_flag=True, help="only show the effect")
@yes_option
@changes
def alter(
    client: QueueClient,
    queue: str,
    arguments: dict[str, Any],
    unset: tuple[str, ...],
    reset: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
    **values: Any,
) -> Reply:
    """Change arguments of a queue, over those that apps declare.

    NAME=VALUE is an x- argument, such as x-max-length=1000; NAME:=null removes a declared one. Apps may continue to
    declare the queue with the old arguments, or with the new ones. docs/queue-arguments.md lists the arguments that can
    be altered, and the effect on ready and delayed messages.
    """
    from ...queue_client.queue_options import QueueOptions

    whole_seconds(values)
    options = QueueOptions(arguments=arguments, **values)
    alteration = client.alter(queue, options, unset=unset, reset=reset, force=force, dry_run=True)
    changes = list(_changes(alteration))
    lines = [*changes, *alteration.notes]
    if changes and not (yes or dry_run):
        for text in lines:
            note(text)
        confirm(f"Alter queue {queue!r}?", yes)
        lines = []
    if not dry_run:
        alteration = client.alter(queue, options, unset=unset, reset=reset, force=force)
    ending = "was not changed (dry run)" if dry_run else "altered"
    return Reply(
        {"queue": queue, **plain(alteration)},
        *lines,
        f"queue {queue!r} {ending if changes else 'has these arguments already'}",
    )


def _changes(alteration: QueueAltered) -> Iterable[str]:
    """Yield a line for each argument whose value changes."""
    for name in sorted(alteration.before.keys() | alteration.after.keys()):
        before, after = alteration.before.get(name), alteration.after.get(name)
        if before != after:
            declared = f" (declared: {alteration.declared[name]})" if name in alteration.declared else ""
            yield f"{name}: {_value(before)} -> {_value(after)}{declared}"


def _value(value: Any) -> str:
    return "none" if value is None else str(value)


@click.command(cls=Command, epilog="Example: opendata-queue queue pause mails")
@queue_argument
@click.option("--publish", "publishes", is_flag=True, help="refuse publishes as well")
@changes
def pause(client: QueueClient, queue: str, publishes: bool) -> Reply:
    """Pause a queue: its consumers get nothing until it is resumed.

    They may finish the messages that they hold. Publishes continue; with --publish, they are refused, and producers
    that retry succeed after the queue is resumed. A paused queue stays paused when the broker restarts.
    """
    paused = client.pause(queue, publishes=publishes)
    scope = "deliveries and publishes" if paused.publishes else "deliveries"
    already = "" if paused.changed else " already"
    text = f"queue {queue!r} is{already} paused ({scope}), since {local(paused.since)}"
    return Reply({"queue": queue, **plain(paused)}, text, notes=[f"to resume: {next_command('queue resume', queue)}"])


@click.command(cls=Command, epilog="Example: opendata-queue queue resume mails")
@queue_argument
@click.option("--publish-only", "publishes_only", is_flag=True, help="only take publishes again")
@changes
def resume(client: QueueClient, queue: str, publishes_only: bool) -> Reply:
    """Resume a queue that was paused."""
    paused = client.resume(queue, publishes_only=publishes_only)
    if paused.changed:
        outcome = "takes publishes again" if paused.deliveries else "is resumed"
    else:
        outcome = "took publishes already" if paused.deliveries else "was not paused"
    return Reply({"queue": queue, **plain(paused)}, f"queue {queue!r} {outcome}")
