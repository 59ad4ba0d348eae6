"""Limits and usage of users, instances and connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from ...errors import ConnectionLimitExceeded, LimitExceeded
from ...protocol import messages as m
from .rights import User
from .users_format import InstanceTable, LimitsTable

NO_LIMITS = LimitsTable()
#: limits of a broker without options
INSTANCE_LIMITS = LimitsTable(queues=100_000, bindings=200_000)
CONNECTION_LIMITS = LimitsTable(channels=2047, consumers=10_000)


class Holder(Protocol):
    """A session: the holder of channels, by number, with their consumers."""

    channels: Any


class Quota:
    """Limits of one user, one instance or one connection."""

    __slots__ = ("_level", "_level_at", "arriving", "limits", "sessions", "whose")

    def __init__(self, whose: str, limits: LimitsTable) -> None:
        self.whose = whose  # the owner of the quota, for error messages
        self.limits = limits  # may be replaced at any time, without an effect on existing objects
        self.sessions: set[Holder] = set()  # connected sessions
        self.arriving = 0  # connections that have logged in, and whose sessions are about to be resumed
        self._level = float(limits.publishes_per_second or 0)
        self._level_at = 0.0

    def check_connection(self, session: Holder | None) -> None:
        """Raise ConnectionLimitExceeded if a session may not connect; None means a new session.

        A session that is connected already counts once, so it may always reconnect.
        """
        limit = self.limits.connections
        if limit is not None and session not in self.sessions and len(self.sessions) >= limit:
            raise self._too_many_connections(limit)

    def check_arrival(self) -> None:
        """Raise ConnectionLimitExceeded if too many other connections are logging in."""
        limit = self.limits.connections
        if limit is not None and self.arriving >= limit:
            raise self._too_many_connections(limit)

    def _too_many_connections(self, limit: int) -> ConnectionLimitExceeded:
        text = self._text("connections", limit)
        return ConnectionLimitExceeded(text, limit="connections", value=limit, whose=self.whose)

    def check_channel(self) -> None:
        if self.limits.channels is not None:
            self.check("channels", 1 + sum(len(session.channels) for session in self.sessions))

    def check_consumer(self) -> None:
        if self.limits.consumers is not None:
            channels = (channel for session in self.sessions for channel in session.channels.values())
            self.check("consumers", 1 + sum(len(channel.consumers) for channel in channels))

    def check(self, name: str, count: int) -> None:
        """Raise LimitExceeded if ``count``, with the new object, exceeds the limit ``name`` of :class:`LimitsTable`."""
        limit = getattr(self.limits, name)
        if limit is not None and count > limit:
            limit_name = name.replace("_", "-")
            raise LimitExceeded(self._text(limit_name, limit), limit=limit_name, value=limit, whose=self.whose)

    def _text(self, name: str, limit: int) -> str:
        what = f"messages of {limit} bytes at most" if name == "message-bytes" else f"{limit:,} {name} at most"
        return f"{self.whose} may have {what} (the limit {name!r}): ask the administrator of the broker to raise it"

    def delay(self, messages: int, now: float) -> float:
        """Count published messages; return the delay in seconds before they are handled.

        The messages of one second may arrive together. A faster publisher accumulates delay, so that several
        connections publish in turn.
        """
        rate = self.limits.publishes_per_second
        if rate is None:
            return 0.0
        self._level = min(self._level + (now - self._level_at) * rate, rate) - messages
        self._level_at = now
        return max(-self._level / rate, 0.0)

    def give_back(self, messages: int) -> None:
        """Subtract counted messages that were not published."""
        self._level += messages


class SessionQuotas(NamedTuple):
    """Quotas that apply to one session."""

    user: Quota
    instance: Quota
    connection: Quota


def messages_of(message: m.WireMessage) -> int:
    """Return the number of messages that a call counts as."""
    return len(message.messages) if isinstance(message, m.Send) else 1


def check_size(quotas: SessionQuotas, message: m.WireMessage) -> None:
    """Raise LimitExceeded if a call's message or result is larger than its user or instance may publish."""
    size = 0
    if isinstance(message, m.Publish):
        size = len(message.envelope)
    elif isinstance(message, m.Send):
        size = max((len(envelope) for envelope, *_rest in message.messages), default=0)
    elif isinstance(message, m.StoreResult):
        size = len(message.value)
    for quota in quotas:
        quota.check("message_bytes", size)


class Quotas:
    """Quotas by user and by instance.

    ``each_instance`` are the limits of instances without limits in the users file, and ``each_connection`` those of
    each connection.
    """

    def __init__(self, each_instance: LimitsTable = NO_LIMITS, each_connection: LimitsTable = NO_LIMITS) -> None:
        self._each_instance, self._each_connection = each_instance, each_connection
        self._users: Mapping[str, User] = {}
        self._tables: Mapping[str, InstanceTable] = {}
        self._of_users: dict[str, Quota] = {}
        self._of_instances: dict[str, Quota] = {}

    def update(self, users: Mapping[str, User], instances: Mapping[str, InstanceTable]) -> None:
        """Apply the limits of a users file that was read."""
        self._users, self._tables = users, instances
        for name, quota in self._of_users.items():
            quota.limits = users[name].limits if name in users else NO_LIMITS
        for name, quota in self._of_instances.items():
            quota.limits = self._limits_of(name)

    def _limits_of(self, instance: str) -> LimitsTable:
        """Return the limits of an instance; the default replaces each limit that the users file does not have."""
        table, default = self._tables.get(instance), self._each_instance
        if table is None:
            return default
        values = {name: getattr(table.limits, name) for name in LimitsTable.__struct_fields__}
        return LimitsTable(
            **{name: getattr(default, name) if value is None else value for name, value in values.items()}
        )

    def of(self, user: str, instance: str) -> SessionQuotas:
        """Return the quotas for a new session of a user in an instance."""
        if user not in self._of_users:
            limits = self._users[user].limits if user in self._users else NO_LIMITS
            self._of_users[user] = Quota(f"user {user!r}" if user else "everybody", limits)
        if instance not in self._of_instances:
            self._of_instances[instance] = Quota(f"instance {instance!r}", self._limits_of(instance))
        connection = Quota("a connection", self._each_connection)
        return SessionQuotas(self._of_users[user], self._of_instances[instance], connection)


#: quotas of a session without limits
UNLIMITED = Quotas().of("", "")
