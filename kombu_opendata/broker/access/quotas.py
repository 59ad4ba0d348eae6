"""What a user, an instance or a connection may use at most, and what it uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from ...errors import ConnectionLimitExceeded, LimitExceeded
from .file_format import InstanceTable, LimitsTable
from .user import User

NO_LIMITS = LimitsTable()
#: what a broker without other options allows
INSTANCE_LIMITS = LimitsTable(queues=100_000, bindings=200_000)
CONNECTION_LIMITS = LimitsTable(channels=2047, consumers=10_000)


class Holder(Protocol):
    """A session: it holds channels, by number, and these hold consumers."""

    channels: Any


class Quota:
    """The limits of one user, one instance or one connection.

    Attributes:
        whose: for errors.
        limits: may be replaced at any time; what is in use already stays.
        sessions: those that are connected.
        arriving: connections that have logged in, and whose sessions are about to be resumed.
    """

    __slots__ = ("_level", "_level_at", "arriving", "limits", "sessions", "whose")

    def __init__(self, whose: str, limits: LimitsTable) -> None:
        self.whose = whose
        self.limits = limits
        self.sessions: set[Holder] = set()
        self.arriving = 0
        self._level = float(limits.publishes_per_second or 0)
        self._level_at = 0.0

    # ------------------------------------------------------------------ counts
    def check_connection(self, session: Holder | None) -> None:
        """Check that a session may be connected; one that is connected already counts once, and None is a new one.

        Raises:
            ConnectionLimitExceeded: there are as many already.
        """
        limit = self.limits.connections
        if limit is not None and session not in self.sessions and len(self.sessions) >= limit:
            raise self._too_many_connections(limit)

    def check_arrival(self) -> None:
        """Check that one more connection may arrive. Its session may be among those that are connected.

        Raises:
            ConnectionLimitExceeded: as many arrive as there may be.
        """
        limit = self.limits.connections
        if limit is not None and self.arriving >= limit:
            raise self._too_many_connections(limit)

    def _too_many_connections(self, limit: int) -> ConnectionLimitExceeded:
        text = self._text("connections", limit)
        return ConnectionLimitExceeded(text, limit="connections", value=limit, whose=self.whose)

    def check_channel(self) -> None:
        """Raise :class:`LimitExceeded` if there can't be one more channel."""
        if self.limits.channels is not None:
            self.check("channels", 1 + sum(len(session.channels) for session in self.sessions))

    def check_consumer(self) -> None:
        """Raise :class:`LimitExceeded` if there can't be one more consumer."""
        if self.limits.consumers is not None:
            channels = (channel for session in self.sessions for channel in session.channels.values())
            self.check("consumers", 1 + sum(len(channel.consumers) for channel in channels))

    def check(self, name: str, count: int) -> None:
        """Check a limit.

        Args:
            name: a field of :class:`LimitsTable`.
            count: how many there would be.

        Raises:
            LimitExceeded: there may not be so many.
        """
        limit = getattr(self.limits, name)
        if limit is not None and count > limit:
            shown = name.replace("_", "-")
            raise LimitExceeded(self._text(shown, limit), limit=shown, value=limit, whose=self.whose)

    def _text(self, name: str, limit: int) -> str:
        what = f"messages of {limit} bytes at most" if name == "message-bytes" else f"{limit:,} {name} at most"
        return f"{self.whose} may have {what} (the limit {name!r}): ask whoever runs the broker if that is too few"

    # ------------------------------------------------------------------ publishes a second
    def delay(self, messages: int, now: float) -> float:
        """Count messages that are published; returns after how many seconds they may be.

        Those of one second may come at once. Who publishes more has the delay of all before, so that publishes of
        several connections take turns.
        """
        rate = self.limits.publishes_per_second
        if rate is None:
            return 0.0
        self._level = min(self._level + (now - self._level_at) * rate, rate) - messages
        self._level_at = now
        return max(-self._level / rate, 0.0)

    def give_back(self, messages: int) -> None:
        """Messages that were counted will not be published."""
        self._level += messages


class SessionQuotas(NamedTuple):
    """Those that count for one session."""

    user: Quota
    instance: Quota
    connection: Quota


class Quotas:
    """The quotas of a broker, by user and by instance.

    Args:
        each_instance: the limits of instances without limits of their own in the users file.
        each_connection: those of each connection.
    """

    def __init__(self, each_instance: LimitsTable = NO_LIMITS, each_connection: LimitsTable = NO_LIMITS) -> None:
        self._each_instance = each_instance
        self._each_connection = each_connection
        self._users: Mapping[str, User] = {}
        self._tables: Mapping[str, InstanceTable] = {}
        self._of_users: dict[str, Quota] = {}
        self._of_instances: dict[str, Quota] = {}

    def update(self, users: Mapping[str, User], instances: Mapping[str, InstanceTable]) -> None:
        """The users file was read: its limits count from now on."""
        self._users, self._tables = users, instances
        for name, quota in self._of_users.items():
            quota.limits = users[name].limits if name in users else NO_LIMITS
        for name, quota in self._of_instances.items():
            quota.limits = self._limits_of(name)

    def _limits_of(self, instance: str) -> LimitsTable:
        """The limits of an instance: each from the file, or else that of all instances."""
        table, default = self._tables.get(instance), self._each_instance
        if table is None:
            return default
        own = {name: getattr(table.limits, name) for name in LimitsTable.__struct_fields__}
        return LimitsTable(**{name: getattr(default, name) if value is None else value for name, value in own.items()})

    def of(self, user: str, instance: str) -> SessionQuotas:
        """The quotas that a new session of a user in an instance has."""
        if user not in self._of_users:
            limits = self._users[user].limits if user in self._users else NO_LIMITS
            self._of_users[user] = Quota(f"user {user!r}" if user else "everybody", limits)
        if instance not in self._of_instances:
            self._of_instances[instance] = Quota(f"instance {instance!r}", self._limits_of(instance))
        each = Quota("a connection", self._each_connection)
        return SessionQuotas(self._of_users[user], self._of_instances[instance], each)


#: of a session that has no limits
UNLIMITED = Quotas().of("", "")
