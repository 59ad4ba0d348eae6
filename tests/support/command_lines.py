"""Command lines of ``opendata-queue`` in docs and files, as the command itself reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from kombu_opendata.cli.administration.brokers import broker_tools
from kombu_opendata.cli.root import main


def _all_verbs(group: click.Group = main, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from _all_verbs(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command
    if group is main:
        yield from _all_verbs(broker_tools, "broker ")


VERBS = dict(_all_verbs())


def parse(words: Sequence[str]) -> click.Context:
    """What the command makes of these words, without its own name; a usage error if they are wrong."""
    verb = max((name for name in VERBS if list(words[: len(name.split())]) == name.split()), key=len)
    return VERBS[verb].make_context(verb, list(words[len(verb.split()) :]))
