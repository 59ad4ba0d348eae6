"""Options of ``opendata-queue broker``, made from their definition, and their values from all sources."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ...configuration.kinds import Choice, File, Flag
from ...configuration.options import specs
from ...configuration.specs import Spec

if TYPE_CHECKING:
    from ...configuration.sources import Configuration


class _Value(click.ParamType):  # type: ignore[type-arg]
    """An unvalidated value of an option: the errors of all sources are reported together."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.name = spec.option.kind.metavar

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
        kind = self.spec.option.kind
        if isinstance(kind, Choice):
            return [CompletionItem(word) for word in kind.words if word.lower().startswith(incomplete.lower())]
        return [CompletionItem(incomplete, type="file")] if isinstance(kind, File) else []


def _option(spec: Spec) -> Callable[[Any], Any]:
    option = spec.option
    names = (spec.flag, spec.field)
    if isinstance(option.kind, Flag):
        return click.option(*names, is_flag=True, default=None, hidden=option.internal, help=option.help)
    return click.option(
        *names, type=_Value(spec), multiple=option.repeated, metavar=option.kind.metavar, hidden=option.internal,
        help=_help(spec),
    )  # fmt: skip


def _help(spec: Spec) -> str:
    """Return the help of an option, with its default and permitted values in brackets."""
    option = spec.option
    default = "" if spec.required else spec.described(spec.default)
    facts = [
        f"default: {default}" if default else "",
        "" if option.kind.allowed == "at least 0" else option.kind.allowed,
        "may be repeated" if option.repeated else "",
    ]
    text = "; ".join(fact for fact in facts if fact)
    return f"{option.help}  [{text}]" if text else option.help


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="a TOML file with any of these options; default: $OPENDATA_QUEUE_CONFIG",
)


def broker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of the broker; the command receives those of the command line, and None for the others."""
    for spec in reversed(specs()):
        command = _option(spec)(command)
    return config_option(command)


def collected(config: Path | None, given: dict[str, Any]) -> Configuration:
    """Return the options of all sources.

    An embedded broker has only those of its command line: the environment of the user that happens to start it must not
    decide how the broker behaves that all clients of the folder share.
    """
    from ...configuration.sources import configuration

    options = {name: value for name, value in given.items() if value not in (None, ())}
    if options.get("embedded"):
        return configuration(options, {}, None)
    return configuration(options, os.environ, config)
