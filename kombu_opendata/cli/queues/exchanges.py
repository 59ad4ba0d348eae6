"""Commands ``exchange``, ``binding`` and ``filter explain``: the routing of published messages to queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ...json_values import plain
from ...readable_text import arguments_text, counted
from ..exit_codes import REFUSED, CommandError, CommandGroup, confirm
from ..hints import next_command
from ..option_types import MESSAGE_ID, SELECTOR, arguments_of, header_option, parsed, with_options
from ..output import Reply, Table
from ..target import (
    Target,
    changes,
    complete_exchanges,
    complete_queues,
    exchange_argument,
    queue_argument,
    reads,
    reads_at_target,
    yes_option,
)

if TYPE_CHECKING:
    from ...queue_client import QueueClient
    from ...queue_client.queues import Binding, ExchangeInfo, QueueInfo

_TYPES = ("direct", "topic", "fanout", "headers")


exchange_group = CommandGroup("exchange", help="List, show, explain, create and delete exchanges.")
binding_group = CommandGroup("binding", help="List, create and delete bindings of queues to exchanges.")
filter_group = CommandGroup("filter", help="Explain filters.")


def _exchange(client: QueueClient, name: str) -> ExchangeInfo:
    """Return the exchange of this name; raise NotFound if it does not exist."""
    from ...errors import NotFound

    for info in client.list_exchanges():
        if info.name == name:
            return info
    raise NotFound(f"no exchange {name!r}", exchange=name)


def durability(info: QueueInfo | ExchangeInfo) -> str:
    """Return the kind of a queue or an exchange."""
    if getattr(info, "exclusive", False):
        return "exclusive"
    return "auto-delete" if info.auto_delete else "durable" if info.durable else "transient"


_EXCHANGES = Table(
    {
        "exchange": "name", "type": "", "kind": durability, "bindings#": "",
        "arguments": lambda info: arguments_text(info.arguments),
    },
    none="no exchanges",
)  # fmt: skip
_BINDINGS = Table(
    {"queue": "", "exchange": "", "routing key": "", "arguments": lambda binding: arguments_text(binding.arguments)},
    none="no bindings",
)


def bindings_of(bindings: list[Binding], owner: str) -> Table:
    """Return the table of a queue's or an exchange's bindings, without the column ``owner``."""
    columns = {heading: value for heading, value in _BINDINGS.columns.items() if heading != owner}
    return _BINDINGS.of(bindings)._replace(columns=columns, title="bindings")


@exchange_group.command("list", epilog="Example: opendata-queue exchange list")
@reads
def list_exchanges(client: QueueClient) -> Reply:
    """List the exchanges. The default exchange, which routes to each queue by its name, is not listed."""
    infos = client.list_exchanges()
    return Reply(infos, _EXCHANGES.of(infos))


@exchange_group.command("show", epilog="Example: opendata-queue exchange show news")
@exchange_argument
@reads
def show_exchange(client: QueueClient, exchange: str) -> Reply:
    """Show an exchange and its bindings."""
    info = _exchange(client, exchange)
    bindings = [binding for binding in client.list_bindings() if binding.exchange == exchange]
    return Reply(
        {**plain(info), "bindings": bindings},
        {"exchange": info.name, "type": info.type, "kind": durability(info), **info.arguments},
        bindings_of(bindings, "exchange"),
    )


@exchange_group.command("explain", epilog="Example: opendata-queue exchange explain news --routing-key de.sports")
@click.argument("exchange", default="", shell_complete=complete_exchanges)
@click.option("--routing-key", default="", metavar="KEY", help="of the message; for the default exchange, a queue")
@header_option("a header of the message")
@reads_at_target
def explain_exchange(exchange: str, routing_key: str, headers: dict[str, Any], target: Target) -> Reply:
    """Show the queues to which a message would be routed.

    EXCHANGE is the exchange of the publish; without it, the default exchange. Nothing is sent. Exits with 1 if no queue
    matches. `filter explain QUEUE` explains why a queue gets a message or not.
    """
    with target.client(read_only=True) as client:
        queues = client.test_routing(exchange, routing_key, headers)
    document = {"exchange": exchange, "routing_key": routing_key, "headers": headers, "queues": queues}
    if queues:
        return Reply(document, Table({"queue": str}, none="", rows=queues))
    hint = f"bindings: '{next_command('binding list')}', filters of queues: '{next_command('queue list')}'"
    return Reply(document, "no queue would get it", notes=[hint], error=click.exceptions.Exit(REFUSED))


@exchange_group.command("create", epilog="Example: opendata-queue exchange create news --type topic")
@click.argument("exchange")
@click.option("--type", "type", type=click.Choice(_TYPES), default="topic", show_default=True, help="how it routes")
@click.option("--transient", is_flag=True, help="keep it in memory only; it ends with the broker")
@click.option("--auto-delete", is_flag=True, help="delete it when its last binding is deleted")
@click.option(
    "--alternate-exchange",
    metavar="EXCHANGE",
    shell_complete=complete_exchanges,
    help="gets the messages that this exchange routes to no queue",
)
@changes
def create_exchange(
    client: QueueClient, exchange: str, type: Any, transient: bool, auto_delete: bool, alternate_exchange: str | None
) -> Reply:
    """Create an exchange. Nothing happens if the exchange exists with the same options."""
    arguments = {} if alternate_exchange is None else {"alternate-exchange": alternate_exchange}
    client.declare_exchange(exchange, type, durable=not transient, auto_delete=auto_delete, arguments=arguments)
    return Reply(_exchange(client, exchange), f"exchange {exchange!r} is ready")


@exchange_group.command("delete", epilog="Example: opendata-queue exchange delete news --if-unused")
@exchange_argument
@click.option("--if-unused", is_flag=True, help="only if it has no bindings")
@yes_option
@changes
def delete_exchange(client: QueueClient, exchange: str, if_unused: bool, yes: bool) -> Reply:
    """Delete an exchange with its bindings. Queues and their messages stay."""
    bindings = _exchange(client, exchange).bindings
    if bindings and not if_unused:
        confirm(f"Delete exchange {exchange!r} with {counted(bindings, 'binding')}?", yes)
    client.delete_exchange(exchange, if_unused=if_unused)
    document = {"exchange": exchange, "deleted": True, "bindings": bindings}
    return Reply(document, f"exchange {exchange!r} deleted, with {counted(bindings, 'binding')}")


@binding_group.command("list", epilog="Example: opendata-queue binding list --exchange news")
@click.argument("queue", required=False, shell_complete=complete_queues)
@click.option("--exchange", metavar="EXCHANGE", help="only those to this exchange", shell_complete=complete_exchanges)
@reads
def list_bindings(client: QueueClient, queue: str | None, exchange: str | None) -> Reply:
    """List all bindings, or those of one queue."""
    if queue is not None:
        client.get_queue(queue)
    if exchange is not None:
        _exchange(client, exchange)
    bindings = [binding for binding in client.list_bindings(queue) if exchange in (None, binding.exchange)]
    return Reply(bindings, _BINDINGS.of(bindings))


_binding_options = with_options(
    queue_argument,
    exchange_argument,
    click.option(
        "--routing-key", default="", metavar="KEY", help="for a topic exchange, a pattern: * is one word, # any number"
    ),
    click.option(
        "--argument",
        "-a",
        "arguments",
        multiple=True,
        metavar="NAME=TEXT",
        callback=parsed(arguments_of),
        help="for a headers exchange: a header or x-match; or NAME:=JSON",
    ),
)


@binding_group.command("create", epilog="Example: opendata-queue binding create orders news --routing-key 'de.#'")
@_binding_options
@changes
def create_binding(
    client: QueueClient, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]
) -> Reply:
    """Bind a queue to an exchange.

    The queue then receives the matching messages that are published there. Nothing happens if the binding exists.
    """
    client.bind(queue, exchange, routing_key, arguments)
    document = {"queue": queue, "exchange": exchange, "routing_key": routing_key, "arguments": arguments}
    return Reply(document, f"queue {queue!r} is bound to exchange {exchange!r}")


@binding_group.command("delete", epilog="Example: opendata-queue binding delete orders news --routing-key 'de.#'")
@_binding_options
@changes
def delete_binding(
    client: QueueClient, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]
) -> Reply:
    """Delete a binding of a queue to an exchange.

    Give the routing key and the arguments with which it was created. The queue's messages stay.
    """
    client.get_queue(queue)
    has_arguments = _exchange(client, exchange).type == "headers"
    if not any(
        (binding.exchange, binding.routing_key) == (exchange, routing_key)
        and (not has_arguments or binding.arguments == arguments)
        for binding in client.list_bindings(queue)
    ):
        raise CommandError(
            f"queue {queue!r} has no such binding to exchange {exchange!r}: "
            f"'{next_command('binding list', queue)}' shows its bindings"
        )
    client.unbind(queue, exchange, routing_key, arguments)
    document = {"queue": queue, "exchange": exchange, "routing_key": routing_key, "deleted": True}
    return Reply(document, f"binding of queue {queue!r} to exchange {exchange!r} deleted")


@filter_group.command(epilog="Example: opendata-queue filter explain big --id 1234")
@click.argument("queue", required=False, default="", shell_complete=complete_queues)
@click.option("--filter", "filter", default="", type=SELECTOR, help="try this filter instead of a queue's")
@click.option("--id", type=MESSAGE_ID, help="a stored message to try")
@header_option("a header to try")
@reads_at_target
def explain(queue: str, filter: str, id: int | None, headers: dict[str, Any], target: Target) -> Reply:
    """Explain why a queue gets a message or not.

    The output has the value of each part of the filter. Exits with 1 if the queue does not get the message. --filter
    with --header needs no broker.
    """
    from ...queue_client.reading import metadata_texts
    from ...selectors import compile_selector

    if bool(queue) == bool(filter):
        raise click.UsageError("name a QUEUE, or give a --filter")
    if id is not None and headers:
        raise click.UsageError("give --id or --header, not both")
    texts = None if id is not None else metadata_texts(headers)
    if filter and texts is not None:
        explanation = compile_selector(filter).explain(texts)
        report = {"matches": explanation.value is True, "filter": explanation.to_dict()}
    else:
        with target.client(read_only=True) as client:
            report = client.explain(queue, id=id, headers=texts, filter=filter)
    error = None if report["matches"] else click.exceptions.Exit(REFUSED)
    return Reply(report, *_explanation_lines(report), error=error)


def _explanation_lines(report: dict[str, Any]) -> Iterator[str]:
    from ...selectors import Explanation

    def lines(explanation: dict[str, Any]) -> Iterator[str]:
        yield from (f"  {line}" for line in str(Explanation.from_dict(explanation)).splitlines())

    if queue := report.get("queue"):
        yield f"queue {queue!r} {'gets it' if report['matches'] else 'does not get it'}"
    else:
        yield f"the filter {'matches' if report['matches'] else 'does not match'}"
    if report["filter"] is not None:
        yield f"filter{f' (mode {mode})' if (mode := report.get('mode')) else ''}:"
        yield from lines(report["filter"])
    for binding in report.get("bindings", ()):
        to = f"{binding['type']} exchange {binding['exchange']!r}" if binding["exchange"] else "the default exchange"
        verdict = "matches" if binding["matches"] else "does not match"
        yield f"binding to {to}, key {binding['routing_key']!r}: {verdict}"
        yield from lines(binding["explanation"])
    if report.get("bindings_omitted"):
        yield f"and {report['bindings_omitted']} more bindings"
