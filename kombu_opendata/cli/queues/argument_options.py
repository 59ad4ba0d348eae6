"""Options for arguments of queues, which ``queue create`` and ``queue alter`` share."""

from __future__ import annotations

from typing import Any

import click

from ..option_types import LENGTH, with_options

#: fields of :class:`~kombu_opendata.queue_client.QueueOptions` that are whole seconds
_WHOLE = ("lease_seconds", "done_retention_seconds", "failed_retention_seconds")

argument_options = with_options(
    click.option("--filter", "filter", metavar="SELECTOR", help="the queue gets every message that matches"),
    click.option(
        "--filter-mode",
        type=click.Choice(["any", "all"]),
        help="any: filter or binding must match; all: filter and binding must match",
    ),
    click.option("--max-attempts", type=int, metavar="N", help="deliveries before a message fails; -1: no limit"),
    click.option(
        "--lease", "lease_seconds", type=LENGTH, help="how long messages wait for their consumer after a restart"
    ),
    click.option("--done-retention", "done_retention_seconds", type=LENGTH, help="how long archived messages are kept"),
    click.option(
        "--failed-retention", "failed_retention_seconds", type=LENGTH, help="how long failed messages are kept"
    ),
    click.option("--message-ttl", "message_ttl_seconds", type=LENGTH, help="how long a message may wait"),
    click.option(
        "--expires", "expires_seconds", type=LENGTH, help="delete the queue when it has been unused for this long"
    ),
    click.option("--max-length", type=int, metavar="N", help="how many messages may wait in it"),
    click.option("--max-length-bytes", type=int, metavar="N", help="how many bytes may wait in it"),
    click.option(
        "--overflow",
        type=click.Choice(["drop-head", "reject-publish", "reject-publish-dlx"]),
        help="what happens when it is full",
    ),
    click.option(
        "--dead-letter-exchange", metavar="EXCHANGE", help="where rejected, expired and dropped messages are published"
    ),
    click.option(
        "--dead-letter-routing-key", metavar="KEY", help="the routing key of dead letters; default: their own"
    ),
    click.option(
        "--retry-delay",
        "retry_delay_seconds",
        type=LENGTH,
        help="wait before the second attempt; doubles with each further one",
    ),
    click.option("--retry-max-delay", "retry_max_delay_seconds", type=LENGTH, help="the longest of these waits"),
)


def whole_seconds(given: dict[str, Any]) -> None:
    """Round the durations of arguments that have whole seconds."""
    for name in _WHOLE:
        if given[name] is not None:
            given[name] = round(given[name])
