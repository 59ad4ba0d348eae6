"""An open instance as its connections see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..protocol.message_base import Message
from ..protocol.messages import CreateInstance, Hello, InstanceCreated, InstanceList, ListInstances
from .background import Background
from .calls.registry import Handler
from .handlers import Handlers
from .model.sessions import Session
from .outbox import Outbox
from .queues import Queues
from .session_lifecycle import SessionLifecycle


@dataclass(frozen=True, slots=True)
class Host:
    """What serves the clients of one instance."""

    name: str
    lifecycle: SessionLifecycle
    outbox: Outbox
    background: Background
    queues: Queues
    calls: Mapping[type[Message], Handler]
    handlers: Callable[[Session], Handlers]


class Hosts(Protocol):
    """Where connections find the instance that a client asks for."""

    async def host_for(self, hello: Hello) -> Host:
        """The instance that a client who has logged in asks for.

        Raises:
            RequestError: the Hello is wrong.
            InstanceNotFound: there is no such instance.
        """

    async def answer(self, call: CreateInstance | ListInstances) -> InstanceCreated | InstanceList:
        """Answer a call about instances."""
