"""Actions on exchanges and bindings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from ...protocol import messages as m
from ..brokers import UserBroker
from .action import Action, ActionOutcome, JsonObject, Parameters, Preview, Report, counted


class ExchangeParameters(Parameters):
    exchange: str = Field(title="Exchange", min_length=1)


class DeclareExchangeParameters(ExchangeParameters):
    type: Literal["topic", "direct", "fanout", "headers"] = Field("topic", title="Type")


async def preview_declare(broker: UserBroker, given: DeclareExchangeParameters) -> Preview:
    existing_names = {exchange.name for exchange in await broker.client.list_exchanges()}
    if given.exchange in existing_names:
        return Preview(f"There is an exchange {given.exchange} already.", is_possible=False)
    return Preview("A new exchange that survives restarts.")


async def declare(broker: UserBroker, given: DeclareExchangeParameters, _report: Report) -> ActionOutcome:
    await broker.client.declare_exchange(given.exchange, given.type)
    return ActionOutcome(f"The exchange {given.exchange} is there.", {}, "exchange", {"name": given.exchange})


async def preview_delete(broker: UserBroker, given: ExchangeParameters) -> Preview:
    exchange = next(
        (candidate for candidate in await broker.client.list_exchanges() if candidate.name == given.exchange), None
    )
    if exchange is None:
        return Preview(f"There is no exchange {given.exchange}.", is_possible=False)
    text = f"The exchange {given.exchange} will be deleted with {counted(exchange.bindings, 'binding')}."
    return Preview(text, exchange.bindings)


async def delete(broker: UserBroker, given: ExchangeParameters, _report: Report) -> ActionOutcome:
    await broker.client.delete_exchange(given.exchange)
    return ActionOutcome(f"The exchange {given.exchange} is deleted.", {}, "exchanges")


class BindingParameters(ExchangeParameters):
    queue: str = Field(title="Queue", min_length=1)
    routing_key: str = Field(
        "", title="Routing key", description="for a topic exchange a pattern: * is a word, # any number"
    )
    arguments: JsonObject = Field(
        default_factory=dict,
        title="Arguments",
        description='as JSON; for a headers exchange, the headers and "x-match"',
        json_schema_extra={"lines": True},
    )

    @field_validator("arguments", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        return value or {}


async def preview_bind(_broker: UserBroker, given: BindingParameters) -> Preview:
    return Preview(f"{given.queue or 'The queue'} will get what is published to {given.exchange} and matches.")


async def bind(broker: UserBroker, given: BindingParameters, _report: Report) -> ActionOutcome:
    await broker.client.bind(given.queue, given.exchange, given.routing_key, given.arguments)
    return ActionOutcome(f"{given.queue} is bound to {given.exchange}.", {}, "exchange", {"name": given.exchange})


async def preview_unbind(_broker: UserBroker, given: BindingParameters) -> Preview:
    return Preview(f"{given.queue} will get no more from {given.exchange} by the key {given.routing_key!r}.")


async def unbind(broker: UserBroker, given: BindingParameters, _report: Report) -> ActionOutcome:
    await broker.client.unbind(given.queue, given.exchange, given.routing_key, given.arguments)
    return ActionOutcome(f"{given.queue} is no longer bound by this key.", {}, "exchange", {"name": given.exchange})


_EXCHANGE = frozenset(("exchange",))
_BINDING = frozenset(("exchange", "queue", "routing_key", "arguments"))
ACTIONS: tuple[Action[Any], ...] = (
    Action(
        "declare-exchange", "Create an exchange", m.DeclareExchange, DeclareExchangeParameters, preview_declare,
        declare,
    ),
    Action(
        "delete-exchange", "Delete the exchange", m.DeleteExchange, ExchangeParameters, preview_delete, delete,
        _EXCHANGE, "exchange",
        is_dangerous=True,
    ),
    Action("bind", "Bind a queue", m.Bind, BindingParameters, preview_bind, bind, _EXCHANGE),
    Action("unbind", "Unbind", m.Unbind, BindingParameters, preview_unbind, unbind, _BINDING, is_dangerous=True),
)  # fmt: skip
