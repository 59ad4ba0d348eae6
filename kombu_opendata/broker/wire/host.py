"""An open instance as its connections see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ...protocol.message_base import Message
from ...protocol.messages import Hello
from ..calls.context import Context
from ..calls.registry import Handler
from ..delivery.queues import Queues
from ..delivery.session_lifecycle import SessionLifecycle
from ..model.sessions import Session


@dataclass(frozen=True, slots=True)
class Host:
    """What serves the clients of one instance."""

    lifecycle: SessionLifecycle
    queues: Queues
    handlers: Mapping[type[Message], Handler]
    context: Callable[[Session], Context]


class Hosts(Protocol):
    """Where connections find the instance that a client asks for."""

    async def host_for(self, hello: Hello) -> Host:
        """The instance that a client who has logged in asks for.

        Raises:
            RequestError: the Hello is wrong.
            InstanceNotFound: there is no such instance.
        """
