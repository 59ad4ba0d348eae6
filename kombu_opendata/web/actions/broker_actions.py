"""Actions on the broker as a whole."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from ...protocol import messages as m
from ..brokers import UserBroker
from .action import Action, ActionOutcome, Parameters, Preview, Report, words


class MaintainParameters(Parameters):
    duties: list[Literal["route", "expire_leases", "collect"]] = Field(
        default_factory=list, title="Duties", description="route, expire_leases, collect; none means all"
    )

    @field_validator("duties", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return words(value)


async def preview_maintain(_broker: UserBroker, _given: MaintainParameters) -> Preview:
    return Preview("Run maintenance now. The broker also runs it periodically; clients are not affected.")


async def maintain(broker: UserBroker, given: MaintainParameters, _report: Report) -> ActionOutcome:
    await broker.client.maintain(given.duties)
    return ActionOutcome("Maintenance is done.", {}, "store")


class NoParameters(Parameters):
    """No parameters."""


async def preview_reload(_broker: UserBroker, _given: NoParameters) -> Preview:
    return Preview("The broker reads its files of users and certificates again, with effect on open connections.")


async def reload(broker: UserBroker, _given: NoParameters, _report: Report) -> ActionOutcome:
    await broker.client.reload()
    return ActionOutcome("The files are read.", {}, "store")


async def preview_hand_over(_broker: UserBroker, _given: NoParameters) -> Preview:
    return Preview("The standby takes over, and this broker ends. Clients reconnect automatically.")


async def hand_over(broker: UserBroker, _given: NoParameters, _report: Report) -> ActionOutcome:
    addresses = await broker.client.hand_over()
    return ActionOutcome(f"The standby takes over: {', '.join(addresses)}.", {}, "store")


ACTIONS: tuple[Action[Any], ...] = (
    Action("maintain", "Maintain", m.Maintain, MaintainParameters, preview_maintain, maintain, is_long=True),
    Action("reload", "Read files again", m.Reload, NoParameters, preview_reload, reload),
    Action("hand-over", "Hand over", m.HandOver, NoParameters, preview_hand_over, hand_over, is_dangerous=True),
)
