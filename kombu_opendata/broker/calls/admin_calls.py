"""The broker as a whole: its status, maintenance on request, its instances."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ...protocol import messages as m
from ..instance.maintenance import Maintenance, check_duties
from .context import Context
from .registry import handles


class Directory(Protocol):
    """The instances of a broker, as calls about them see it."""

    def listing(self) -> dict[str, bool]:
        """All instances that can be told, and whether each is open."""

    async def create(self, name: str) -> bool:
        """Open an instance; whether it is new.

        Raises:
            RequestError: not a valid name.
            StoreError, StartError: it can't be opened.
        """


class AdminCalls:
    """The calls of an operator."""

    def __init__(
        self, maintenance: Maintenance, directory: Directory, status: Callable[[], Awaitable[dict[str, Any]]]
    ) -> None:
        self._maintenance = maintenance
        self._directory = directory
        self._status = status

    @handles(m.GetStatus, query=True)
    def get_status(self, call: Context, msg: m.GetStatus) -> None:
        call.run(msg.rid, self._get_status(msg))

    async def _get_status(self, msg: m.GetStatus) -> m.Status:
        return m.Status(msg.rid, await self._status())

    @handles(m.Maintain)
    def maintain(self, call: Context, msg: m.Maintain) -> None:
        """Answered when it is done; meanwhile everything else goes on."""
        check_duties(msg.duties)
        call.run(msg.rid, self._maintain(call, msg))

    async def _maintain(self, call: Context, msg: m.Maintain) -> m.Maintained:
        name = call.session.name
        return m.Maintained(
            msg.rid, await self._maintenance.run(msg.duties, name, again_in_seconds=msg.again_in_seconds)
        )

    @handles(m.ListInstances, query=True)
    def list_instances(self, call: Context, msg: m.ListInstances) -> None:
        call.reply(m.InstanceList(msg.rid, self._directory.listing()))

    @handles(m.CreateInstance, query=True)
    def create_instance(self, call: Context, msg: m.CreateInstance) -> None:
        call.run(msg.rid, self._create_instance(msg))

    async def _create_instance(self, msg: m.CreateInstance) -> m.InstanceCreated:
        return m.InstanceCreated(msg.rid, await self._directory.create(msg.name))
