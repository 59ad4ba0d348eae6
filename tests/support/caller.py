"""The calls of one session, made without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kombu_opendata.broker.calls.admin_calls import Directory
from kombu_opendata.broker.calls.all_calls import InstanceCalls
from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.protocol.envelope import DEFAULT_MAX_MESSAGE_BYTES
from kombu_opendata.protocol.messages import Reloaded, WireMessage


async def no_status() -> dict[str, Any]:
    """The status of no broker."""
    return {}


async def no_instances(name: str) -> bool:
    """No broker that could create an instance."""
    raise NotImplementedError


def no_files(by: str) -> Reloaded:
    """No broker that has files to read."""
    raise NotImplementedError


class Caller:
    """``caller(message)`` handles a message as the broker does when it comes from this session."""

    def __init__(
        self, instance: Instance, session: Session, status: Callable[[], Awaitable[dict[str, Any]]] = no_status
    ) -> None:
        self.session = session
        directory = Directory(status, dict, no_instances, list, no_files)
        calls = InstanceCalls(instance, DEFAULT_MAX_MESSAGE_BYTES, directory)
        self.handlers = calls.handlers
        self._context = calls.context(session)
        self._background = instance.background

    def __call__(self, message: WireMessage) -> None:
        handler = self.handlers[type(message)]
        handler.check(self.session.rights, message)
        handler.run(self._context, message)

    async def done(self) -> None:
        """Wait for all calls that are under way."""
        await asyncio.gather(*self._background._tasks)
