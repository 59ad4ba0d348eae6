"""Commands ``exchange`` and ``binding``: the routing of published messages to queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...json_values import plain
from ...readable_text import arguments_text, counted
from ..exit_codes import REFUSED, CommandError, CommandGroup, confirm
from ..hints import next_command
from ..option_types import header_option, headers_of, with_options
from ..target import Target, call_options, complete_exchanges, complete_queues, look_options, queue_argument, yes_option
from ..terminal.output import note, print_facts, print_json, say
from ..terminal.tables import Column, print_table

if TYPE_CHECKING:
    from ...queue_client import QueueClient
    from ...queue_client.queue_models import ExchangeInfo

_TYPES = ("direct", "topic", "fanout", "headers")
_ALTERNATE = "alternate-exchange"


@click.group("exchange", cls=CommandGroup)
def exchange_group() -> None:
    """List, show, explain, create and delete exchanges."""


@click.group("binding", cls=CommandGroup)
def binding_group() -> None:
    """List, create and delete bindings of queues to exchanges."""


exchange_argument = click.argument("exchange", shell_complete=complete_exchanges)


def _exchange(client: QueueClient, name: str) -> ExchangeInfo:
    """Return the exchange of this name.

    Raises:
        NotFound: it does not exist.
    """
    from ...errors import NotFound

    for info in client.list_exchanges():
        if info.name == name:
            return info
    raise NotFound(f"no exchange {name!r}", exchange=name)


# ---------------------------------------------------------------------- exchanges
@exchange_group.command("list", epilog="Example: opendata-queue exchange list")
@look_options
def list_exchanges(target: Target, as_json: bool) -> None:
    """List the exchanges.

    The default exchange, which routes to each queue by its name, is not listed.
    """
    with target.client(looks=True) as client:
        infos = client.list_exchanges()
    if as_json:
        print_json(infos)
        return
    columns: list[Column] = [
        ("exchange", False), ("type", False), ("kind", False), ("bindings", True), ("arguments", False),
    ]  # fmt: skip
    rows = [(info.name, info.type, _kind(info), info.bindings, arguments_text(info.arguments)) for info in infos]
    print_table(columns, rows, none="no exchanges")


def _kind(info: ExchangeInfo) -> str:
    return "auto-delete" if info.auto_delete else "durable" if info.durable else "transient"


@exchange_group.command("show", epilog="Example: opendata-queue exchange show news")
@exchange_argument
@look_options
def show_exchange(exchange: str, target: Target, as_json: bool) -> None:
    """Show an exchange and its bindings."""
    with target.client(looks=True) as client:
        info = _exchange(client, exchange)
        bindings = [binding for binding in client.list_bindings() if binding.exchange == exchange]
    if as_json:
        print_json({**plain(info), "bindings": bindings})
        return
    print_facts({"exchange": info.name, "type": info.type, "kind": _kind(info), **info.arguments})
    columns: list[Column] = [("queue", False), ("routing key", False), ("arguments", False)]
    rows = [(binding.queue, binding.routing_key, arguments_text(binding.arguments)) for binding in bindings]
    print_table(columns, rows, title="bindings", none="no bindings")


@exchange_group.command("explain", epilog="Example: opendata-queue exchange explain news --routing-key de.sports")
@click.argument("exchange", default="", shell_complete=complete_exchanges)
@click.option(
    "--routing-key", default="", metavar="KEY", help="of the message; for the default exchange, a queue's name"
)
@header_option("a header of the message")
@look_options
def explain_exchange(exchange: str, routing_key: str, headers: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Show the queues to which a message would be routed.

    EXCHANGE is the exchange of the publish; without it, the default exchange. Nothing is sent. Exits with 1 if no queue
    matches. `filter explain QUEUE` explains why a queue gets a message or not.
    """
    header_values = headers_of(headers)
    with target.client(looks=True) as client:
        queues = client.test_routing(exchange, routing_key, header_values)
    if as_json:
        print_json({"exchange": exchange, "routing_key": routing_key, "headers": header_values, "queues": queues})
    elif queues:
        print_table([("queue", False)], [(name,) for name in queues], none="")
    if not queues:
        if not as_json:
            say("no queue would get it")
            note(f"bindings: '{next_command('binding list')}', filters of queues: '{next_command('queue list')}'")
        raise click.exceptions.Exit(REFUSED)


@exchange_group.command("create", epilog="Example: opendata-queue exchange create news --type topic")
@click.argument("exchange")
@click.option("--type", "type", type=click.Choice(_TYPES), default="topic", show_default=True, help="how it routes")
@click.option("--transient", is_flag=True, help="keep it in memory only; it ends with the broker")
@click.option("--auto-delete", is_flag=True, help="delete it when its last binding is deleted")
@click.option(
    "--alternate-exchange", metavar="EXCHANGE", shell_complete=complete_exchanges,
    help="gets the messages that this exchange routes to no queue",
)  # fmt: skip
@call_options
def create_exchange(
    exchange: str,
    type: Any,
    transient: bool,
    auto_delete: bool,
    alternate_exchange: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """Create an exchange.

    Nothing happens if the exchange exists with the same options.
    """
    arguments = {_ALTERNATE: alternate_exchange} if alternate_exchange is not None else {}
    with target.client() as client:
        client.declare_exchange(exchange, type, durable=not transient, auto_delete=auto_delete, arguments=arguments)
        info = _exchange(client, exchange) if as_json else None
    if as_json:
        print_json(info)
    else:
        say(f"exchange {exchange!r} is ready")


@exchange_group.command("delete", epilog="Example: opendata-queue exchange delete news --if-unused")
@exchange_argument
@click.option("--if-unused", is_flag=True, help="only if it has no bindings")
@yes_option
@call_options
def delete_exchange(exchange: str, if_unused: bool, yes: bool, target: Target, as_json: bool) -> None:
    """Delete an exchange with its bindings.

    Queues and their messages stay.
    """
    with target.client() as client:
        bindings = _exchange(client, exchange).bindings
        if bindings and not if_unused:
            confirm(f"Delete exchange {exchange!r} with {counted(bindings, 'binding')}?", yes)
        client.delete_exchange(exchange, if_unused=if_unused)
    if as_json:
        print_json({"exchange": exchange, "deleted": True, "bindings": bindings})
    else:
        say(f"exchange {exchange!r} deleted, with {counted(bindings, 'binding')}")


# ---------------------------------------------------------------------- bindings
@binding_group.command("list", epilog="Example: opendata-queue binding list --exchange news")
@click.argument("queue", required=False, shell_complete=complete_queues)
@click.option("--exchange", metavar="EXCHANGE", help="only those to this exchange", shell_complete=complete_exchanges)
@look_options
def list_bindings(queue: str | None, exchange: str | None, target: Target, as_json: bool) -> None:
    """List all bindings, or those of one queue."""
    with target.client(looks=True) as client:
        if queue is not None:
            client.get_queue(queue)
        if exchange is not None:
            _exchange(client, exchange)
        bindings = [binding for binding in client.list_bindings(queue) if exchange in (None, binding.exchange)]
    if as_json:
        print_json(bindings)
        return
    columns: list[Column] = [("queue", False), ("exchange", False), ("routing key", False), ("arguments", False)]
    rows = [
        (binding.queue, binding.exchange, binding.routing_key, arguments_text(binding.arguments))
        for binding in bindings
    ]
    print_table(columns, rows, none="no bindings")


_binding_options = with_options(
    queue_argument,
    exchange_argument,
    click.option(
        "--routing-key", default="", metavar="KEY", help="for a topic exchange, a pattern: * is one word, # any number"
    ),
    click.option(
        "--argument", "-a", "arguments", multiple=True, metavar="NAME=TEXT",
        help="for a headers exchange: a header or x-match; or NAME:=JSON",
    ),
    call_options,
)  # fmt: skip


@binding_group.command("create", epilog="Example: opendata-queue binding create orders news --routing-key 'de.#'")
@_binding_options
def create_binding(
    queue: str, exchange: str, routing_key: str, arguments: tuple[str, ...], target: Target, as_json: bool
) -> None:
    """Bind a queue to an exchange.

    The queue then receives the matching messages that are published there. Nothing happens if the binding exists.
    """
    argument_values = headers_of(arguments, "argument")
    with target.client() as client:
        client.bind(queue, exchange, routing_key, argument_values)
    if as_json:
        print_json({"queue": queue, "exchange": exchange, "routing_key": routing_key, "arguments": argument_values})
    else:
        say(f"queue {queue!r} is bound to exchange {exchange!r}")


@binding_group.command("delete", epilog="Example: opendata-queue binding delete orders news --routing-key 'de.#'")
@_binding_options
def delete_binding(
    queue: str, exchange: str, routing_key: str, arguments: tuple[str, ...], target: Target, as_json: bool
) -> None:
    """Delete a binding of a queue to an exchange.

    Give the routing key and the arguments with which it was created. The queue's messages stay.
    """
    argument_values = headers_of(arguments, "argument")
    with target.client() as client:
        client.get_queue(queue)
        matched = _exchange(client, exchange).type == "headers"
        matches = [
            binding
            for binding in client.list_bindings(queue)
            if (binding.exchange, binding.routing_key) == (exchange, routing_key)
            and (not matched or binding.arguments == argument_values)
        ]
        if not matches:
            raise CommandError(
                f"queue {queue!r} has no such binding to exchange {exchange!r}: "
                f"'{next_command('binding list', queue)}' shows its bindings"
            )
        client.unbind(queue, exchange, routing_key, argument_values)
    if as_json:
        print_json({"queue": queue, "exchange": exchange, "routing_key": routing_key, "deleted": True})
    else:
        say(f"binding of queue {queue!r} to exchange {exchange!r} deleted")
