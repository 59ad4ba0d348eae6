"""Calls about the whole broker: status, maintenance on request, instances."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ...protocol import messages as m
from ..access.rights import ROLES
from ..instance.maintenance import Maintenance
from .dispatch import BrokerCalls, Context, handles


@dataclass(frozen=True, slots=True)
class Directory:
    """Operations of the broker that its instances' clients can call."""

    status: Callable[[], Awaitable[dict[str, Any]]]  # returns the report of the status call
    listing: Callable[[], dict[str, bool]]  # returns all instances, with True for an open instance
    create: Callable[[str], Awaitable[bool]]  # opens an instance; returns True if it is new
    #: ends this broker and lets its standby take over; returns the standby's addresses
    hand_over: Callable[[], list[str]]
    #: reads the files of users and certificates again, for the named requester; raises InvalidUsersFile or StartError
    #: for an invalid file, which has no effect
    reload: Callable[[str], m.Reloaded]


class AdminCalls(BrokerCalls):
    """Calls of an operator."""

    _maintenance: Maintenance
    _directory: Directory

    @handles(m.GetStatus)
    async def get_status(self, call: Context, msg: m.GetStatus) -> m.Status:
        report, user = await self._directory.status(), call.session.user
        if "instances" in report:
            report["instances"] = {name: status for name, status in report["instances"].items() if user.may_enter(name)}
        return m.Status(msg.rid, report)

    @handles(m.Maintain)
    async def maintain(self, call: Context, msg: m.Maintain) -> m.Maintained:
        """Run maintenance duties; replies when they are done."""
        name, again = call.session.name, msg.again_in_seconds
        return m.Maintained(msg.rid, await self._maintenance.run(msg.duties, name, again_in_seconds=again))

    @handles(m.Reload)
    def reload(self, call: Context, msg: m.Reload) -> None:
        report = self._directory.reload(f"user {call.session.user.name!r}")
        report.rid = msg.rid
        call.reply(report)

    @handles(m.WhoAmI)
    def who_am_i(self, call: Context, msg: m.WhoAmI) -> None:
        session = call.session
        rights = session.rights
        roles: list[str] = [role for role in ROLES if role in rights.roles]
        patterns = (names.pattern for names in (rights.configure, rights.write, rights.read))
        call.reply(m.Identity(msg.rid, session.user.name, session.login, rights.instance, roles, *patterns))

    @handles(m.ListInstances)
    def list_instances(self, call: Context, msg: m.ListInstances) -> None:
        user, listing = call.session.user, self._directory.listing()
        call.reply(
            m.InstanceList(msg.rid, {name: is_open for name, is_open in listing.items() if user.may_enter(name)})
        )

    @handles(m.CreateInstance)
    async def create_instance(self, call: Context, msg: m.CreateInstance) -> m.InstanceCreated:
        created = await self._directory.create(msg.name)
        if created:
            call.audit("created instance %r", msg.name)
        return m.InstanceCreated(msg.rid, created)

    @handles(m.HandOver)
    def hand_over(self, call: Context, msg: m.HandOver) -> None:
        """Hand over to a standby; replies before this broker ends."""
        addresses = self._directory.hand_over()
        call.audit("moved the service to the standby at %s", ", ".join(addresses))
        call.reply(m.HandingOver(msg.rid, addresses))
