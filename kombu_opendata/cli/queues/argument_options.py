"""Options for arguments of queues, which ``queue create`` and ``queue alter`` share."""

from __future__ import annotations

from typing import Any

import click

from ...protocol.queue_arguments import KNOWN, Argument
from ..option_types import LENGTH, with_options


def _option(argument: Argument) -> Any:
    name = argument.option
    kind: Any = LENGTH if argument.units_per_second else argument.kind
    if argument.choices:
        kind = click.Choice(argument.choices)
    metavar = argument.metavar if kind in (int, str) else None
    flag = f"--{name.removesuffix('_seconds').replace('_', '-')}"
    return click.option(flag, name, type=kind, metavar=metavar, help=argument.help)


argument_options = with_options(*(_option(argument) for argument in KNOWN if argument.help))


def whole_seconds(given: dict[str, Any]) -> None:
    """Round the durations of arguments that have whole seconds."""
    for argument in KNOWN:
        if argument.units_per_second == 1 and given[argument.option] is not None:
            given[argument.option] = round(given[argument.option])
