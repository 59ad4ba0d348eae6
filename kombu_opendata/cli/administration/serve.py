"""Commands ``broker``, ``config check`` and ``config show``: a broker with its options, made from their definition."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ...configuration.kinds import Choice, File, Flag
from ...configuration.options import Spec, public_specs, specs
from ...errors import OpenDataError
from ..exit_codes import REFUSED, USAGE, Command, CommandError, CommandGroup
from ..output import Reply
from ..target import prints
from .brokers import broker_tools

if TYPE_CHECKING:
    from ...configuration.sources import Configuration


class _Value(click.ParamType):  # type: ignore[type-arg]
    """An unvalidated value of an option: the errors of all sources are reported together."""

    def __init__(self, spec: Spec) -> None:
        self._kind = spec.kind
        self.name = spec.kind.metavar

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
        if isinstance(self._kind, Choice):
            return [CompletionItem(word) for word in self._kind.words if word.lower().startswith(incomplete.lower())]
        return [CompletionItem(incomplete, type="file")] if isinstance(self._kind, File) else []


def _option(spec: Spec) -> Callable[[Any], Any]:
    names = (spec.flag, spec.field)
    if isinstance(spec.kind, Flag):
        return click.option(*names, is_flag=True, default=None, hidden=spec.internal, help=spec.help)
    kind = spec.kind
    return click.option(
        *names, type=_Value(spec), multiple=spec.repeated, metavar=kind.metavar, hidden=spec.internal, help=_help(spec)
    )


def _help(spec: Spec) -> str:
    """Return the help of an option, with its default and permitted values in brackets."""
    default = "" if spec.required else spec.described(spec.default)
    facts = [
        f"default: {default}" if default else "",
        "" if spec.kind.allowed == "at least 0" else spec.kind.allowed,
        "may be repeated" if spec.repeated else "",
    ]
    text = "; ".join(fact for fact in facts if fact)
    return f"{spec.help}  [{text}]" if text else spec.help


def _broker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of the broker; the command receives those of the command line, and None for the others."""
    for spec in reversed(specs()):
        command = _option(spec)(command)
    text = "a TOML file with any of these options; default: $OPENDATA_QUEUE_CONFIG"
    return click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help=text)(command)


def _collected(config: Path | None, values: dict[str, Any]) -> Configuration:
    """Return the options of all sources.

    An embedded broker only has those of its command line. All clients of the folder share it, so its behaviour must not
    depend on the environment of the user whose client starts it.
    """
    from ...configuration.sources import configuration

    options = {name: value for name, value in values.items() if value not in (None, ())}
    if options.get("embedded"):
        return configuration(options, {}, None)
    return configuration(options, os.environ, config)


class _Broker(Command):
    """Command ``broker``, whose completion also has the verbs of ``broker_tools``."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        items = super().shell_complete(ctx, incomplete)
        if not ctx.params.get("store"):
            items += [
                CompletionItem(name, help=verb.get_short_help_str())
                for name, verb in sorted(broker_tools.commands.items())
                if name.startswith(incomplete)
            ]
        return items


@click.command(
    cls=_Broker, epilog="Example: opendata-queue broker --store /var/lib/app-queue --listen unix:/run/app-queue.sock"
)
@_broker_options
@click.option("--ready-fd", type=int, hidden=True)
def broker(config: Path | None, ready_fd: int | None, **values: Any) -> None:
    """Run a broker: the one process that owns a store. SIGTERM stops it cleanly.

    \b
    broker start      start the broker of a folder in the background
    broker status     show a running broker's queues, backlogs and consumers
    broker reload     let a running broker read its users file and certificates again
    broker stop       stop the broker of a folder
    broker hand-over  move the service to the standby

    Each option can also be set in a TOML file (max-connections = 500) or in the environment
    (OPENDATA_QUEUE_MAX_CONNECTIONS=500). The command line comes first, then the environment, then the file.
    """  # noqa: D301 - click looks for the character itself
    from ...broker.process.process import Readiness, run

    configuration = _collected(config, values)
    try:
        options = configuration.options()
    except OpenDataError as exc:
        Readiness(ready_fd).report({"code": exc.code, "text": exc.text, "values": exc.values})
        raise CommandError(exc.text, USAGE) from exc
    sys.exit(run(options, ready_fd, configuration.warnings))


config_group = CommandGroup("config", help="Check or show the options of a broker.")


_FILE = click.argument("file", required=False, metavar="[FILE]", type=click.Path(path_type=Path))


@config_group.command(cls=Command, epilog="Example: opendata-queue config check /etc/opendata-queue/broker.toml")
@_FILE
@_broker_options
@prints
def check(file: Path | None, config: Path | None, **values: Any) -> Reply:
    """Report every error that would keep a broker from starting.

    FILE is a broker's --config file. The command checks its values, those of the environment, and the options given
    here, including the addresses. It checks that this user can use the files and the store's folder that they name,
    and that other users can't read secrets. The certificate must be valid and belong to its key, and the users file
    must be valid. Nothing is changed, and no bucket is contacted. Run it as the user that the broker runs as.
    """
    from ...broker.process.start_settings import start_faults
    from ...configuration.sources import invalid

    configuration = _collected(file or config, values)
    errors = list(configuration.errors)
    if (options := configuration.valid_part()) is not None:
        errors += start_faults(options, whole=not errors)
    return Reply(
        {"ok": not errors, "errors": errors, "warnings": configuration.warnings},
        *(() if errors else ("the configuration is good",)),
        notes=[
            *(f"Warning: {text}" for text in configuration.warnings),
            *(f"Error: {invalid(errors).text}".split("\n") if errors else ()),
        ],
        error=click.exceptions.Exit(REFUSED) if errors else None,
    )


@config_group.command(cls=Command, epilog="Example: opendata-queue config show --config broker.toml --json")
@_FILE
@_broker_options
@prints
def show(file: Path | None, config: Path | None, **values: Any) -> Reply:
    """Show a broker's options, and the source of each.

    FILE is a broker's --config file; the options given here and the environment also apply. The output can be used as
    such a file. Secrets in the store's URL are not shown.
    """
    configuration = _collected(file or config, values)
    options = configuration.options()
    document, lines = {}, []
    for spec in public_specs():
        value, source = _shown(spec, getattr(options, spec.field)), configuration.sources.get(spec.field, "default")
        document[spec.key] = {"value": value, "source": source}
        is_set = value not in (None, [])
        lines.append(f"{spec.key} = {as_toml(value)}  # {source}" if is_set else f"# {spec.key} is not set")
    return Reply(document, *lines)


def _shown(spec: Spec, value: Any) -> Any:
    from ...masking import masked

    return masked(value) if spec.field == "store" else spec.shown(value)


def as_toml(value: Any) -> str:
    """Return a value in TOML, which writes texts, numbers and lists as JSON does, except for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
