"""Users, and their rights in each instance: cached decisions about names, and roles.

Patterns are searched for in the names of exchanges and queues, as in RabbitMQ. RE2 searches in linear time, so no
pattern and no name can block the broker.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import re2

from ...errors import AccessRefused
from ...protocol.permissions import ALL_EXCHANGES, DEFAULT_EXCHANGE, RESULTS, STAGED_JOBS
from .users_format import LimitsTable, Patterns, Role, UserTable

#: each role includes those before it
ROLES: tuple[Role, ...] = ("monitor", "operator", "admin")
#: the entry for instances without their own entry
ANY_INSTANCE = "*"
#: the pattern that permits every name
EVERYTHING = ".*"
#: the maximum length of the names of queues and exchanges in bytes
_MAX_NAME = 255
#: limits for the decisions of a pattern and the instances of a user that are cached
_MAX_DECISIONS, _MAX_INSTANCES = 10_000, 1000
_SHOWN = 100
_MEANINGS = {ALL_EXCHANGES: " (all messages)", RESULTS: " (the results of tasks)", STAGED_JOBS: " (staged jobs)"}
_VERBS = {"configure": "configure", "write": "write to", "read": "read from"}
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20


class PatternError(ValueError):
    """Invalid pattern; the text gives the reason."""


class Names(dict[str, bool]):
    """Decisions of a pattern by name. The look-up of a new name searches the pattern in it."""

    __slots__ = ("_max_decisions", "_search", "pattern")

    def __init__(self, pattern: str, *, max_decisions: int = _MAX_DECISIONS) -> None:
        """Compile the pattern; raise PatternError if the pattern is not valid."""
        super().__init__()
        self.pattern, self._max_decisions = pattern, max_decisions
        try:
            self._search: Any = re2.compile(pattern, _OPTIONS).search if pattern else None
        except re2.error as exc:
            reason = exc.args[0].decode(errors="replace") if exc.args and isinstance(exc.args[0], bytes) else exc
            raise PatternError(f"{pattern[:_SHOWN]!r} is not a regular expression of RE2: {reason}") from exc

    def __missing__(self, name: str) -> bool:
        if self._search is None or len(name) > _MAX_NAME:
            return self.pattern == EVERYTHING  # the validity of the name is checked elsewhere
        if len(self) >= self._max_decisions:
            self.clear()
        self[name] = is_permitted = self._search(name or DEFAULT_EXCHANGE) is not None
        return is_permitted


class Rights:
    """A user's rights in an instance."""

    __slots__ = ("configure", "instance", "permits_all", "read", "roles", "user", "write")

    def __init__(self, user: str, instance: str, patterns: Patterns, roles: Collection[Role] = ()) -> None:
        self.user, self.instance = user, instance
        #: the user's roles, and the roles that these include: ``monitor`` (see queues, and messages without contents),
        #: ``operator`` (settle, purge, redrive and replay messages, control workers), ``admin`` (everything)
        self.roles = frozenset(ROLES[: 1 + max(map(ROLES.index, roles))]) if roles else frozenset()
        self.permits_all = "admin" in self.roles  # True if no checks are necessary
        valid = Patterns(EVERYTHING, EVERYTHING, EVERYTHING) if self.permits_all else patterns
        #: permissions by name: ``rights.write["celery"]``
        self.configure, self.write, self.read = Names(valid.configure), Names(valid.write), Names(valid.read)

    def check(self, right: str, kind: str, name: str, *, or_role: str = "") -> None:
        """Raise AccessRefused if the user has neither a right on a ``queue`` or ``exchange`` nor ``or_role``."""
        if not getattr(self, right)[name] and or_role not in self.roles:
            raise self._refusal(right, kind, name, or_role=or_role)

    def may_see(self, queue: str) -> bool:
        """Return True if the user may see that a queue exists: with any right on it, or the role monitor."""
        return "monitor" in self.roles or self.read[queue] or self.write[queue] or self.configure[queue]

    def may_watch(self, queue: str) -> bool:
        """Return True if the user may see the metrics of a queue: with read on it, or the role monitor."""
        return "monitor" in self.roles or self.read[queue]

    def check_publish(self, exchange: str, routing_key: str) -> None:
        """Raise AccessRefused if messages may not be published to an exchange.

        The default exchange needs ``write`` on :data:`DEFAULT_EXCHANGE`, or on the queue that the routing key names.
        """
        if self.permits_publish(exchange, routing_key):
            return
        if exchange or not routing_key:
            raise self._refusal("write", "exchange", exchange)
        raise self._refusal("write", "queue", routing_key, f" over the default exchange ({DEFAULT_EXCHANGE!r})")

    def permits_publish(self, exchange: str, routing_key: str) -> bool:
        """Return True if messages may be published to an exchange, as :meth:`check_publish` decides it."""
        write = self.write
        return write[exchange] or (not exchange and bool(routing_key) and write[routing_key])

    def check_role(self, role: str, what: str) -> None:
        """Raise AccessRefused if the user lacks a role; ``what`` names the operation that needs it."""
        if role not in self.roles:
            raise AccessRefused(
                f"user {self.user!r} may not {what} in instance {self.instance!r}: that needs the role {role!r}. "
                f"{self._whom_to_ask()} --role {role})",
                **self._values(role, "role", role),
            )

    def _refusal(self, right: str, kind: str, name: str, how: str = "", or_role: str = "") -> AccessRefused:
        pattern = getattr(self, right).pattern
        object_name = (name or DEFAULT_EXCHANGE)[:_SHOWN]
        how = how or _MEANINGS.get(name, "")
        because = f"its {right} pattern is {pattern[:_SHOWN]!r}" if pattern else f"it has no {right} pattern"
        if or_role:
            because += f", and it lacks the role {or_role!r}"
        return AccessRefused(
            f"user {self.user!r} may not {_VERBS[right]} {kind} {object_name!r}{how} in instance {self.instance!r}: "
            f"{because}. {self._whom_to_ask()})",
            **self._values(right, kind, object_name),
        )

    def _whom_to_ask(self) -> str:
        return f"Ask the administrator of the users file (opendata-queue user permit {self.user}"

    def _values(self, right: str, kind: str, name: str) -> dict[str, str]:
        return {"right": right, "kind": kind, "name": name, "user": self.user, "instance": self.instance}


#: the rights of all users of a broker without a users file
ALL_RIGHTS = Rights("", "", Patterns(), ["admin"])


class User:
    """A user of the users file."""

    __slots__ = ("_rights", "limits", "name", "table")

    def __init__(self, name: str, table: UserTable) -> None:
        """Compile the patterns; raise PatternError if a pattern is not valid."""
        self.name = name  # the login name
        self.table = table  # the user's table in the file
        self.limits: LimitsTable = table.limits  # the limits of all connections of the user together
        self._rights: dict[str, Rights] = {}
        for instance, patterns in table.instances.items():
            self._rights[instance] = Rights(name, instance, patterns, table.roles)

    def may_enter(self, instance: str) -> bool:
        """Return True if the user has an entry for an instance."""
        tables = self.table.instances
        return instance in tables or ANY_INSTANCE in tables or "admin" in self.table.roles

    def rights(self, instance: str) -> Rights:
        """Return the user's rights in an instance; raise AccessRefused if the user may not use the instance."""
        rights = self._rights.get(instance)
        if rights is None:
            if not self.may_enter(instance):
                instance_name = instance[:100]
                raise AccessRefused(
                    f"user {self.name!r} may not use instance {instance_name!r}: ask the administrator of the users "
                    f"file for an entry (opendata-queue user permit {self.name} --instance {instance_name})",
                    right="enter",
                    kind="instance",
                    name=instance_name,
                    user=self.name,
                    instance=instance_name,
                )
            rights = Rights(self.name, instance, self.table.instances.get(ANY_INSTANCE, Patterns()), self.table.roles)
            if len(self._rights) >= _MAX_INSTANCES:  # names from clients
                self._rights = {name: self._rights[name] for name in self.table.instances}
            self._rights[instance] = rights
        return rights


#: the user of all clients of a broker without a users file
ANONYMOUS = User("", UserTable(roles=frozenset({"admin"})))
