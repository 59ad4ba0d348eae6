"""Actions on exchanges and bindings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, Json, field_validator

from ..brokers import Broker
from .action import Action, Done, Parameters, Preview, Report, counted


class OfExchange(Parameters):
    exchange: str = Field(title="Exchange", min_length=1)


class Declare(OfExchange):
    type: Literal["topic", "direct", "fanout", "headers"] = Field("topic", title="Type")


async def preview_declare(broker: Broker, given: Declare) -> Preview:
    known = {one.name for one in await broker.client.list_exchanges()}
    if given.exchange in known:
        return Preview(f"There is an exchange {given.exchange} already.", is_possible=False)
    return Preview("A new exchange that survives restarts.")


async def declare(broker: Broker, given: Declare, _report: Report) -> Done:
    await broker.client.declare_exchange(given.exchange, given.type)
    return Done(f"The exchange {given.exchange} is there.", {}, "exchange", {"name": given.exchange})


async def preview_delete(broker: Broker, given: OfExchange) -> Preview:
    found = next((one for one in await broker.client.list_exchanges() if one.name == given.exchange), None)
    if found is None:
        return Preview(f"There is no exchange {given.exchange}.", is_possible=False)
    text = f"The exchange {given.exchange} will be deleted with {counted(found.bindings, 'binding')}."
    return Preview(text, found.bindings)


async def delete(broker: Broker, given: OfExchange, _report: Report) -> Done:
    await broker.client.delete_exchange(given.exchange)
    return Done(f"The exchange {given.exchange} is deleted.", {}, "exchanges")


class OfBinding(OfExchange):
    queue: str = Field(title="Queue", min_length=1)
    routing_key: str = Field(
        "", title="Routing key", description="for a topic exchange a pattern: * is a word, # any number"
    )
    arguments: Json[dict[str, Any]] | dict[str, Any] = Field(
        default_factory=dict,
        title="Arguments",
        description='as JSON; for a headers exchange, the headers and "x-match"',
        json_schema_extra={"lines": True},
    )

    @field_validator("arguments", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        return value or {}


async def preview_bind(_broker: Broker, given: OfBinding) -> Preview:
    return Preview(f"{given.queue or 'The queue'} will get what is published to {given.exchange} and matches.")


async def bind(broker: Broker, given: OfBinding, _report: Report) -> Done:
    await broker.client.bind(given.queue, given.exchange, given.routing_key, given.arguments)
    return Done(f"{given.queue} is bound to {given.exchange}.", {}, "exchange", {"name": given.exchange})


async def preview_unbind(_broker: Broker, given: OfBinding) -> Preview:
    return Preview(f"{given.queue} will get no more from {given.exchange} by the key {given.routing_key!r}.")


async def unbind(broker: Broker, given: OfBinding, _report: Report) -> Done:
    await broker.client.unbind(given.queue, given.exchange, given.routing_key, given.arguments)
    return Done(f"{given.queue} is no longer bound by this key.", {}, "exchange", {"name": given.exchange})


_EXCHANGE = frozenset(("exchange",))
_BINDING = frozenset(("exchange", "queue", "routing_key", "arguments"))
ACTIONS: tuple[Action[Any], ...] = (
    Action("declare-exchange", "Create an exchange", Declare, preview_declare, declare),
    Action(
        "delete-exchange", "Delete the exchange", OfExchange, preview_delete, delete, _EXCHANGE, "exchange",
        is_dangerous=True,
    ),
    Action("bind", "Bind a queue", OfBinding, preview_bind, bind, _EXCHANGE),
    Action("unbind", "Unbind", OfBinding, preview_unbind, unbind, _BINDING, is_dangerous=True),
)  # fmt: skip
