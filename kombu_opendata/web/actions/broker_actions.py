"""Actions on the broker as a whole."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from ..brokers import Broker
from .action import Action, Done, Parameters, Preview, Report


class Maintain(Parameters):
    duties: list[Literal["route", "expire_leases", "collect"]] = Field(
        default_factory=list, title="Duties", description="route, expire_leases, collect; none means all"
    )

    @field_validator("duties", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return value.replace(",", " ").split() if isinstance(value, str) else value


async def preview_maintain(_broker: Broker, _given: Maintain) -> Preview:
    return Preview("The broker does its maintenance now. It does so by itself, too; others don't notice.")


async def maintain(broker: Broker, given: Maintain, _report: Report) -> Done:
    await broker.client.maintain(given.duties)
    return Done("Maintenance is done.", {}, "store")


class Nothing(Parameters):
    """No parameters."""


async def preview_reload(_broker: Broker, _given: Nothing) -> Preview:
    return Preview("The broker reads its files of users and certificates again, with effect on open connections.")


async def reload(broker: Broker, _given: Nothing, _report: Report) -> Done:
    await broker.client.reload()
    return Done("The files are read.", {}, "store")


async def preview_hand_over(_broker: Broker, _given: Nothing) -> Preview:
    return Preview("The standby takes over, and this broker ends. Clients go there by themselves.")


async def hand_over(broker: Broker, _given: Nothing, _report: Report) -> Done:
    addresses = await broker.client.hand_over()
    return Done(f"The standby takes over: {', '.join(addresses)}.", {}, "store")


ACTIONS: tuple[Action[Any], ...] = (
    Action("maintain", "Maintain", Maintain, preview_maintain, maintain, is_long=True),
    Action("reload", "Read files again", Nothing, preview_reload, reload),
    Action("hand-over", "Hand over", Nothing, preview_hand_over, hand_over, is_dangerous=True),
)
