"""Actions on exchanges and bindings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...protocol import messages as m
from ...readable_text import counted
from ..user_clients import UserBroker
from .action import ActionOutcome, JsonObject, Parameters, Preview, action, json_field


class OnExchange(Parameters):
    exchange: str = Field(title="Exchange", min_length=1)

    def outcome(self, text: str) -> ActionOutcome:
        """Return an outcome that leads to the exchange."""
        return ActionOutcome(text, {}, "exchange", {"name": self.exchange})


@action("declare-exchange", "Create an exchange", m.DeclareExchange)
class DeclareExchangeAction(OnExchange):
    type: Literal["topic", "direct", "fanout", "headers"] = Field("topic", title="Type")

    async def effect_on(self, broker: UserBroker) -> Preview:
        if self.exchange in {exchange.name for exchange in await broker.client.list_exchanges()}:
            return Preview(f"There is an exchange {self.exchange} already.", is_possible=False)
        return Preview("A new exchange that survives restarts.")

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        await broker.client.declare_exchange(self.exchange, self.type)
        return self.outcome(f"The exchange {self.exchange} is there.")


@action("delete-exchange", "Delete the exchange", m.DeleteExchange, "exchange", typed="exchange", is_dangerous=True)
class DeleteExchangeAction(OnExchange):
    async def effect_on(self, broker: UserBroker) -> Preview:
        bindings = {exchange.name: exchange.bindings for exchange in await broker.client.list_exchanges()}
        if self.exchange not in bindings:
            return Preview(f"There is no exchange {self.exchange}.", is_possible=False)
        count = bindings[self.exchange]
        return Preview(f"The exchange {self.exchange} will be deleted with {counted(count, 'binding')}.", count)

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        await broker.client.delete_exchange(self.exchange)
        return ActionOutcome(f"The exchange {self.exchange} is deleted.", {}, "exchanges")


@action("bind", "Bind a queue", m.Bind, "exchange")
class BindAction(OnExchange):
    queue: str = Field(title="Queue", min_length=1)
    routing_key: str = Field(
        "", title="Routing key", description="for a topic exchange a pattern: * is a word, # any number"
    )
    arguments: JsonObject = json_field("Arguments", 'as JSON; for a headers exchange, the headers and "x-match"')

    async def effect_on(self, broker: UserBroker) -> Preview:
        return Preview(f"{self.queue or 'The queue'} will get what is published to {self.exchange} and matches.")

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        await broker.client.bind(self.queue, self.exchange, self.routing_key, self.arguments)
        return self.outcome(f"{self.queue} is bound to {self.exchange}.")


@action("unbind", "Unbind", m.Unbind, "exchange queue routing_key arguments", is_dangerous=True)
class UnbindAction(BindAction):
    effect = "{queue} will get no more from {exchange} by the key {routing_key!r}."
    effect_on = Parameters.effect_on

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        await broker.client.unbind(self.queue, self.exchange, self.routing_key, self.arguments)
        return self.outcome(f"{self.queue} is no longer bound by this key.")
