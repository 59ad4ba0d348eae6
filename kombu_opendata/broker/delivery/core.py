"""The shared components of the services of one instance."""

from __future__ import annotations

from dataclasses import dataclass

from ...storage.clock import Clock
from ...storage.commit.commits import Commits
from ..model.sessions import Session
from .failure import InstanceFailure
from .outbox import Outbox
from .queues import Queues
from .rate_limited_log import Notices


class Traffic:
    """Counters of messages since startup. Background work slows down while they change."""

    __slots__ = ("delivered", "published")

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0

    @property
    def total(self) -> int:
        """A number that changes when a client was served."""
        return self.published + self.delivered


@dataclass(frozen=True, slots=True)
class Core:
    """The components that almost every service of an instance uses.

    Attributes:
        name: the instance's name.
        sessions: the sessions of its clients, by id, with and without a connection.
    """

    name: str
    clock: Clock
    commits: Commits
    sessions: dict[bytes, Session]
    outbox: Outbox
    queues: Queues
    failure: InstanceFailure
    traffic: Traffic
    notices: Notices
