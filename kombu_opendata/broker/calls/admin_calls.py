"""Calls about the whole broker: its status, maintenance on request, its instances."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...protocol import messages as m
from ..access.rights import ROLES
from ..access.users_file import UsersFileChanges
from ..instance.maintenance import Maintenance
from .dispatch import required_rights as needs
from .dispatch.context import Context
from .dispatch.registry import handles


class ReloadReport(NamedTuple):
    """What a reload has done.

    Attributes:
        users: who is new, gone or changed; None if there is no users file.
        certificates: whether there are certificates, which were read again, too.
    """

    users: UsersFileChanges | None
    certificates: bool


@dataclass(frozen=True, slots=True)
class Directory:
    """What the broker tells its clients about itself and its instances.

    Attributes:
        status: the report of the status call.
        listing: all known instances, and whether each is open.
        create: opens an instance; returns whether it is new.
        hand_over: lets the standby go on in place of this broker, and ends it; returns where clients reach that.
        reload: reads the files of users and certificates again, for whom; an InvalidUsersFile or a StartError says what
            stays as before.
    """

    status: Callable[[], Awaitable[dict[str, Any]]]
    listing: Callable[[], dict[str, bool]]
    create: Callable[[str], Awaitable[bool]]
    hand_over: Callable[[], list[str]]
    reload: Callable[[str], ReloadReport]


@dataclass(frozen=True, slots=True)
class AdminCalls:
    """The calls of an operator."""

    _maintenance: Maintenance
    _directory: Directory

    @handles(m.GetStatus, needs=needs.role("monitor", "see the broker's status"), query=True)
    async def get_status(self, call: Context, msg: m.GetStatus) -> m.Status:
        report, user = await self._directory.status(), call.session.user
        if "instances" in report:
            report["instances"] = {name: one for name, one in report["instances"].items() if user.may_enter(name)}
        return m.Status(msg.rid, report)

    @handles(m.Maintain, needs=needs.role("operator", "run the broker's maintenance"))
    async def maintain(self, call: Context, msg: m.Maintain) -> m.Maintained:
        """Answered when the duties are done."""
        name, again = call.session.name, msg.again_in_seconds
        return m.Maintained(msg.rid, await self._maintenance.run(msg.duties, name, again_in_seconds=again))

    @handles(m.Reload, needs=needs.role("admin", "reload the broker's files"))
    def reload(self, call: Context, msg: m.Reload) -> None:
        done = self._directory.reload(f"user {call.session.user.name!r}")
        call.reply(m.Reloaded(msg.rid, *(done.users or UsersFileChanges([], [], [])), done.certificates))

    @handles(m.WhoAmI, needs=needs.entry)
    def who_am_i(self, call: Context, msg: m.WhoAmI) -> None:
        session = call.session
        rights = session.rights
        roles: list[str] = [role for role in ROLES if role in rights.roles]
        patterns = (names.pattern for names in (rights.configure, rights.write, rights.read))
        call.reply(m.Identity(msg.rid, session.user.name, session.login, rights.instance, roles, *patterns))

    @handles(m.ListInstances, needs=needs.entry, query=True)
    def list_instances(self, call: Context, msg: m.ListInstances) -> None:
        user, listing = call.session.user, self._directory.listing()
        call.reply(m.InstanceList(msg.rid, {name: opened for name, opened in listing.items() if user.may_enter(name)}))

    @handles(m.CreateInstance, needs=needs.role("admin", "create instances"), query=True)
    async def create_instance(self, call: Context, msg: m.CreateInstance) -> m.InstanceCreated:
        created = await self._directory.create(msg.name)
        if created:
            call.audit("created instance %r", msg.name)
        return m.InstanceCreated(msg.rid, created)

    @handles(m.HandOver, needs=needs.role("admin", "move the service to the standby"), query=True)
    def hand_over(self, call: Context, msg: m.HandOver) -> None:
        """Answered before this broker ends."""
        addresses = self._directory.hand_over()
        call.audit("moved the service to the standby at %s", ", ".join(addresses))
        call.reply(m.HandingOver(msg.rid, addresses))
