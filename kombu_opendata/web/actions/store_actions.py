"""Actions on the store."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ...errors import AccessRefused
from ...protocol import messages as m
from .. import verification
from ..brokers import UserBroker
from .action import Action, ActionOutcome, Parameters, Preview, Report, counted


class StoreParameters(Parameters):
    instance: str = Field("default", title="Instance", min_length=1)


async def preview_verify(broker: UserBroker, given: StoreParameters) -> Preview:
    identity = await broker.identity()
    if "operator" not in identity.roles:  # the web UI reads the store itself, so the broker can't refuse it
        raise AccessRefused(
            f"user {identity.user!r} may not verify the store: that needs the role 'operator'",
            right="operator",
            kind="role",
            name="operator",
            user=identity.user,
        )
    status = await broker.client.status()
    command_line = verification.command(status["store"], given.instance)
    if given.instance not in status["instances"]:
        return Preview(f"There is no instance {given.instance}.", is_possible=False)
    reason = verification.unreachable(status["store"], status["pid"])
    if reason:
        return Preview(f"The web UI can't read the store: {reason}. On its host: {command_line}", is_possible=False)
    return Preview(
        "Every file and every record of the store will be checked, beside the broker. Nothing is changed.",
        None,
        (f"The same on the command line: {command_line}",),
    )


async def verify(broker: UserBroker, given: StoreParameters, _report: Report) -> ActionOutcome:
    status = await broker.client.status()
    verified = broker.verified[given.instance] = await verification.verify(status["store"], given.instance)
    verdict = {"clean": "The store is clean", "incomplete": "Not everything could be checked"}.get(
        verified.status, f"The store has {counted(verified.found, 'fault')}"
    )
    counts = {
        "files": verified.files,
        "records": verified.records,
        "messages": verified.messages,
        "faults": verified.found,
    }
    text = f"{verdict}: {counted(verified.files, 'file')}, {counted(verified.records, 'record')} and "
    return ActionOutcome(f"{text}{counted(verified.messages, 'message')} were checked.", counts, "store")


ACTIONS: tuple[Action[Any], ...] = (
    Action(
        "verify-store",
        "Verify the store",
        m.Maintain,  # the web UI reads the store, for users who may run its maintenance
        StoreParameters,
        preview_verify,
        verify,
        frozenset(("instance",)),
        is_long=True,
    ),
)
