"""Commands ``config check`` and ``config show``: validation and sources of a broker's options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ...configuration.options import public_specs
from ...configuration.specs import Spec
from ..exit_codes import REFUSED, Command, CommandError, CommandGroup
from ..target import json_option
from ..terminal.output import print_json, say
from .broker_options import broker_options, collected

_FILE = click.argument("file", required=False, metavar="[FILE]", type=click.Path(path_type=Path))


@click.group("config", cls=CommandGroup)
def config_group() -> None:
    """Check or show the options of a broker."""


@config_group.command(cls=Command, epilog="Example: opendata-queue config check /etc/opendata-queue/broker.toml")
@_FILE
@broker_options
@json_option
def check(file: Path | None, config: Path | None, as_json: bool, **given: Any) -> None:
    """Report every error that would keep a broker from starting.

    FILE is a broker's --config file. The command checks its values, those of the environment, the options given here,
    and the files that they name: whether this user can read them, whether others can read secrets, whether the
    certificate is valid and belongs to its key, the users file, the store's folder, the addresses. Nothing is changed,
    and no bucket is contacted. Run it as the user that the broker runs as.
    """
    from ...broker.process.start_settings import start_faults
    from ...configuration.sources import invalid

    configuration = collected(file or config, given)
    faults = list(configuration.faults)
    if (options := configuration.valid_part()) is not None:
        faults += start_faults(options, whole=not faults)
    if as_json:
        print_json({"ok": not faults, "faults": faults, "warnings": configuration.warnings})
        if faults:
            raise click.exceptions.Exit(REFUSED)
        return
    for text in configuration.warnings:
        click.echo(f"Warning: {text}", err=True)
    if faults:
        raise CommandError(invalid(faults).text)
    say("the configuration is good")


@config_group.command(cls=Command, epilog="Example: opendata-queue config show --config broker.toml --json")
@_FILE
@broker_options
@json_option
def show(file: Path | None, config: Path | None, as_json: bool, **given: Any) -> None:
    """Show a broker's options, and the source of each.

    FILE is a broker's --config file; the options given here and the environment also apply. The output can be used as
    such a file. Secrets in the store's URL are not shown.
    """
    configuration = collected(file or config, given)
    options = configuration.options()
    values = {spec: _shown(spec, getattr(options, spec.field)) for spec in public_specs()}
    sources = {spec: configuration.sources.get(spec.field, "default") for spec in public_specs()}
    if as_json:
        print_json({spec.key: {"value": value, "source": sources[spec]} for spec, value in values.items()})
        return
    for spec, value in values.items():
        line = f"{spec.key} = {as_toml(value)}" if value not in (None, []) else f"# {spec.key} is not set"
        say(f"{line}  # {sources[spec]}" if value not in (None, []) else line)


def _shown(spec: Spec, value: Any) -> Any:
    from ...masking import masked

    return masked(value) if spec.field == "store" else spec.shown(value)


def as_toml(value: Any) -> str:
    """Return a value in TOML, which writes texts, numbers and lists as JSON does, except for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
