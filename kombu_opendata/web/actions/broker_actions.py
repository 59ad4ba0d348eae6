"""Actions on the broker as a whole, and on its store."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ...errors import AccessRefused
from ...protocol import messages as m
from ...readable_text import counted
from .. import verification
from ..user_clients import UserBroker
from .action import ActionOutcome, Parameters, Preview, action, words


@action("maintain", "Maintain", m.Maintain, is_long=True)
class MaintainAction(Parameters):
    duties: Annotated[list[Literal["route", "expire_leases", "collect"]], BeforeValidator(words)] = Field(
        default_factory=list, title="Duties", description="route, expire_leases, collect; none means all"
    )

    effect = "Run maintenance now. The broker also runs it periodically; clients are not affected."

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        await broker.client.maintain(self.duties)
        return ActionOutcome("Maintenance is done.", {}, "store")


@action("reload", "Read files again", m.Reload)
class ReloadAction(Parameters):
    effect = "The broker reads its files of users and certificates again, with effect on open connections."

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        await broker.client.reload()
        return ActionOutcome("The files are read.", {}, "store")


@action("hand-over", "Hand over", m.HandOver, is_dangerous=True)
class HandOverAction(Parameters):
    effect = "The standby takes over, and this broker ends. Clients reconnect automatically."

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        addresses = await broker.client.hand_over()
        return ActionOutcome(f"The standby takes over: {', '.join(addresses)}.", {}, "store")


@action("verify-store", "Verify the store", m.Maintain, "instance", is_long=True)
class VerifyStoreAction(Parameters):
    """Verification of the store, which the web UI reads directly, for users who may run maintenance."""

    instance: str = Field("default", title="Instance", min_length=1)

    async def effect_on(self, broker: UserBroker) -> Preview:
        identity = await broker.identity()
        if "operator" not in identity.roles:  # the web UI reads the store itself, so the broker can't refuse it
            text = f"user {identity.user!r} may not verify the store: that needs the role 'operator'"
            raise AccessRefused(text, right="operator", kind="role", name="operator", user=identity.user)
        status = await broker.client.status()
        command_line = verification.command(status["store"], self.instance)
        if self.instance not in status["instances"]:
            return Preview(f"There is no instance {self.instance}.", is_possible=False)
        if reason := verification.unreachable(status["store"], status["pid"]):
            return Preview(f"The web UI can't read the store: {reason}. On its host: {command_line}", is_possible=False)
        text = "Every file and every record of the store will be checked, beside the broker. Nothing is changed."
        return Preview(text, None, (f"The same on the command line: {command_line}",))

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        status = await broker.client.status()
        verified = broker.verified[self.instance] = await verification.verify(status["store"], self.instance)
        verdict = {"clean": "The store is clean", "incomplete": "Not everything could be checked"}.get(
            verified.status, f"The store has {counted(verified.found, 'fault')}"
        )
        counts = {name: getattr(verified, name) for name in ("files", "records", "messages")}
        checked = f"{counted(verified.files, 'file')}, {counted(verified.records, 'record')} and "
        text = f"{verdict}: {checked}{counted(verified.messages, 'message')} were checked."
        return ActionOutcome(text, counts | {"faults": verified.found}, "store")
