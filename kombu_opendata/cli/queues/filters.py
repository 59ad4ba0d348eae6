"""Command ``filter explain``: the reason why a queue receives a message or not."""

from __future__ import annotations

from typing import Any

import click

from ..exit_codes import REFUSED, CommandGroup
from ..option_types import MESSAGE_ID, header_option, headers_of
from ..target import Target, complete_queues, look_options
from ..terminal.output import print_json, say


@click.group("filter", cls=CommandGroup)
def filter_group() -> None:
    """Explain filters."""


@filter_group.command(epilog="Example: opendata-queue filter explain big --id 1234")
@click.argument("queue", required=False, default="", shell_complete=complete_queues)
@click.option("--filter", "filter", default="", metavar="SELECTOR", help="try this filter instead of a queue's")
@click.option("--id", type=MESSAGE_ID, help="a stored message to try")
@header_option("a header to try")
@look_options
def explain(queue: str, filter: str, id: int | None, headers: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Explain why a queue gets a message or not.

    The output has the value of each part of the filter. Exits with 1 if the queue does not get the message. --filter
    with --header needs no broker.
    """
    from ...queue_client.peeking import metadata_texts

    if bool(queue) == bool(filter):
        raise click.UsageError("name a QUEUE, or give a --filter")
    if id is not None and headers:
        raise click.UsageError("give --id or --header, not both")
    texts = None if id is not None else metadata_texts(headers_of(headers))
    if filter and texts is not None:
        report = _local(filter, texts)
    else:
        with target.client(looks=True) as client:
            report = client.explain(queue, id=id, headers=texts, filter=filter)
    if as_json:
        print_json(report)
    else:
        _print(report)
    if not report["matches"]:
        raise click.exceptions.Exit(REFUSED)


def _local(text: str, headers: dict[str, str]) -> dict[str, Any]:
    from ...selectors import compile_selector

    explanation = compile_selector(text).explain(headers)
    return {"matches": explanation.value is True, "filter": explanation.to_dict()}


def _print(report: dict[str, Any]) -> None:
    queue = report.get("queue")
    subject = f"queue {queue!r} " if queue else "the filter "
    positive, negative = ("gets it", "does not get it") if queue else ("matches", "does not match")
    say(subject + (positive if report["matches"] else negative))
    if report["filter"] is not None:
        say(f"filter{f' (mode {mode})' if (mode := report.get('mode')) else ''}:")
        _print_explanation(report["filter"])
    for binding in report.get("bindings", ()):
        verdict = "matches" if binding["matches"] else "does not match"
        kind, exchange = binding["type"], binding["exchange"]
        to = f"{kind} exchange {exchange!r}" if exchange else "the default exchange"
        say(f"binding to {to}, key {binding['routing_key']!r}: {verdict}")
        _print_explanation(binding["explanation"])
    if report.get("bindings_omitted"):
        say(f"and {report['bindings_omitted']} more bindings")


def _print_explanation(found: dict[str, Any]) -> None:
    from ...selectors import Explanation

    for line in str(Explanation.from_dict(found)).splitlines():
        say(f"  {line}")
