"""What one user may do in one instance: decisions about names, each made once, and roles.

Patterns are searched for in the names of exchanges and queues, as in RabbitMQ. RE2 does it in linear time, so no
pattern and no name can keep the broker busy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import re2

from ...errors import AccessRefused
from .file_format import Patterns

#: what patterns call the default exchange, whose name is empty
DEFAULT_EXCHANGE = "amq.default"
#: what patterns call all exchanges together, whose messages a queue with a filter gets
ALL_EXCHANGES = "amq.all"
#: the pattern that permits every name
EVERYTHING = ".*"
#: names of queues and exchanges have at most so many bytes
_MAX_NAME = 255
_MAX_REMEMBERED = 10_000
_SHOWN = 100
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20


class PatternError(ValueError):
    """A pattern that can't be used; the text says why."""


class Names(dict[str, bool]):
    """Whether a pattern permits a name. A look-up of a new name decides it."""

    __slots__ = ("_search", "pattern")

    def __init__(self, pattern: str) -> None:
        """Compile the pattern.

        Raises:
            PatternError: it is not valid.
        """
        super().__init__()
        self.pattern = pattern
        try:
            self._search: Any = re2.compile(pattern, _OPTIONS).search if pattern else None
        except re2.error as exc:
            reason = exc.args[0].decode(errors="replace") if exc.args and isinstance(exc.args[0], bytes) else exc
            raise PatternError(f"{pattern[:_SHOWN]!r} is not a regular expression of RE2: {reason}") from exc

    def __missing__(self, name: str) -> bool:
        if self.pattern == EVERYTHING:
            return True
        if self._search is None or len(name) > _MAX_NAME:
            return False
        if len(self) >= _MAX_REMEMBERED:
            self.clear()
        self[name] = found = self._search(name or DEFAULT_EXCHANGE) is not None
        return found


class Rights:
    """What a user may do in an instance.

    Attributes:
        configure, write, read: whether the user may do so with a name: ``rights.write["celery"]``.
        monitors: may see all queues and messages, without their contents.
        operates: may settle, purge, redrive and replay messages and control workers; includes ``monitors``.
        administers: may do everything.
    """

    __slots__ = ("administers", "configure", "instance", "monitors", "operates", "read", "user", "write")

    def __init__(self, user: str, instance: str, patterns: Patterns, roles: Iterable[str] = ()) -> None:
        self.user = user
        self.instance = instance
        self.administers = "admin" in roles
        self.operates = self.administers or "operator" in roles
        self.monitors = self.operates or "monitor" in roles
        given = Patterns(EVERYTHING, EVERYTHING, EVERYTHING) if self.administers else patterns
        self.configure, self.write, self.read = Names(given.configure), Names(given.write), Names(given.read)

    # ------------------------------------------------------------------ checks
    def check_publish(self, exchange: str, routing_key: str) -> None:
        """Check that messages may be published to an exchange.

        The default exchange needs ``write`` on :data:`DEFAULT_EXCHANGE`, or on the queue that the routing key names.

        Raises:
            AccessRefused: they may not.
        """
        write = self.write
        if write[exchange] or (not exchange and routing_key and write[routing_key]):
            return
        if exchange:
            raise self.refusal("write", "exchange", exchange)
        raise self.refusal("write", "queue", routing_key, f"over the default exchange ({DEFAULT_EXCHANGE!r})")

    def check_write(self, exchange: str) -> None:
        """Raise :class:`AccessRefused` without ``write`` on an exchange."""
        if not self.write[exchange]:
            raise self.refusal("write", "exchange", exchange)

    def check_configure(self, kind: str, name: str) -> None:
        """Raise :class:`AccessRefused` without ``configure`` on a queue or an exchange."""
        if not self.configure[name]:
            raise self.refusal("configure", kind, name)

    def check_read(self, name: str, kind: str = "queue") -> None:
        """Raise :class:`AccessRefused` without ``read`` on a queue or an exchange."""
        if not self.read[name]:
            raise self.refusal("read", kind, name)

    def refusal(self, right: str, kind: str, name: str, how: str = "") -> AccessRefused:
        """The error for a missing right.

        Args:
            right: ``configure``, ``write`` or ``read``.
            kind: ``queue`` or ``exchange``.
            how: what else there is to say about the place.
        """
        pattern = getattr(self, right).pattern
        verb = {"configure": "configure", "write": "write to", "read": "read from"}[right]
        shown = (name or DEFAULT_EXCHANGE)[:_SHOWN]
        place = f"{kind} {shown!r}{f' {how}' if how else ''} in instance {self.instance!r}"
        because = f"its {right} pattern is {pattern[:_SHOWN]!r}" if pattern else f"it has no {right} pattern"
        return AccessRefused(
            f"user {self.user!r} may not {verb} {place}: {because}. Ask whoever keeps the users file "
            f"(opendata-queue user permit {self.user})",
            right=right,
            kind=kind,
            name=shown,
            user=self.user,
            instance=self.instance,
        )

    def missing_role(self, role: str, what: str) -> AccessRefused:
        """The error for a missing role; ``what`` says what it is needed for."""
        return AccessRefused(
            f"user {self.user!r} may not {what} in instance {self.instance!r}: that needs the role {role!r}. Ask "
            "whoever keeps the users file",
            right=role,
            kind="role",
            name=role,
            user=self.user,
            instance=self.instance,
        )


#: of everybody, if the broker has no users file
ALL_RIGHTS = Rights("", "", Patterns(), ["admin"])
