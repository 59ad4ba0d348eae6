"""Limits on the number of connections, and on *strangers*, the connections that have not logged in yet.

A stranger must send its Hello within a few seconds. When there are too many strangers, the broker closes the oldest
connection without a Hello for each new connection. Clients send Hello immediately, so a flood of silent connections
does not prevent clients from logging in.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...errors import GreetingTimeout, TooManyConnections

#: maximum number of strangers: of all hosts, and of one host
MAX_STRANGERS = 256
MAX_STRANGERS_PER_HOST = 128
#: file descriptors reserved for the store, the journal, metrics and new connections
RESERVED_DESCRIPTORS = 200
#: maximum number of refused connections whose sockets are still open, in addition to the limit
MAX_LEAVING = 32
DEFAULT_MAX_CONNECTIONS = 10_000
DEFAULT_GREETING_SECONDS = 10.0
#: maximum time between the login and the Resume, which may be large
RESUME_SECONDS = 30.0
#: the limit of macOS for a process, although it reports "unlimited"
_OPEN_MAX = 10_240


def raise_descriptor_limit() -> int:
    """Raise the soft limit on file descriptors to the hard limit; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, _OPEN_MAX):
        if limit == resource.RLIM_INFINITY or limit > soft:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                break
            except (OSError, ValueError):
                continue
    return descriptor_limit()


def descriptor_limit() -> int:
    """Return the maximum number of file descriptors of this process."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True)
class ConnectionLimits:
    """Maximum numbers of connections, and the maximum time for a login."""

    connections: int = DEFAULT_MAX_CONNECTIONS
    strangers: int = MAX_STRANGERS
    strangers_per_host: int = MAX_STRANGERS_PER_HOST
    greeting_seconds: float = DEFAULT_GREETING_SECONDS
    resume_seconds: float = RESUME_SECONDS

    def within(self, descriptors: int) -> ConnectionLimits:
        """Return these limits, reduced to the available file descriptors, or to a quarter of them if there are few."""
        connections = min(self.connections, max(descriptors - RESERVED_DESCRIPTORS, descriptors // 4))
        strangers = min(self.strangers, max(connections // 2, 1))
        return replace(self, connections=connections, strangers=strangers)


class Slot:
    """Slot of a connection, which is a stranger until :meth:`logged_in`.

    Attributes:
        host: for the limit per host; empty for a Unix socket.
        peer: the client, for the log.
        turn_away: ends the connection with an error. The current owner of the socket sets this attribute, and frees the
            slot when the socket is closed.
    """

    __slots__ = ("_admission", "_timer", "host", "peer", "turn_away")

    def __init__(self, admission: Admission, host: str, peer: str) -> None:
        self._admission = admission
        self.host = host
        self.peer = peer
        self.turn_away: Callable[[TooManyConnections | GreetingTimeout], None] = lambda _exc: None
        self._begin_deadline("Hello", admission.limits.greeting_seconds)

    def _begin_deadline(self, what: str, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._admission.too_slow, self, what, seconds)

    def greeted(self) -> None:
        """Cancel the deadline after the Hello arrived; the connection stays a stranger until its login."""
        self._timer.cancel()
        self._admission.silent.pop(self, None)

    def awaits_resume(self) -> None:
        """Stop counting the client as a stranger after its login, and set a deadline until its session begins."""
        self.logged_in()
        self._begin_deadline("Resume", self._admission.limits.resume_seconds)

    def logged_in(self) -> None:
        """Stop counting the client as a stranger, because its session begins."""
        self.greeted()
        self._admission.forget_stranger(self)

    def free(self) -> None:
        """Free the slot of a closed connection; later calls do nothing."""
        self.logged_in()
        self._admission.slots.discard(self)


class Admission:
    """Assignment of slots to connections.

    Attributes:
        slots: the slots of all connections, including closing connections.
        silent: connections without a Hello, the oldest first.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.slots: set[Slot] = set()
        self.silent: dict[Slot, None] = {}
        self._strangers: set[Slot] = set()
        self._by_host: Counter[str] = Counter()

    @property
    def strangers(self) -> int:
        """Number of connections that have not logged in."""
        return len(self._strangers)

    def take(self, host: str, peer: str) -> Slot:
        """Return a slot for a new connection; it may close the oldest silent stranger for that.

        Raises:
            TooManyConnections: no slot is free.
        """
        full = self._full(host)
        if full is not None:
            only_host = host if full.values["what"] == "host" else None
            oldest = next((slot for slot in self.silent if only_host in (None, slot.host)), None)
            if oldest is None or len(self.slots) >= self.limits.connections + MAX_LEAVING:
                raise full
            self._turn_away(oldest, full)
        slot = Slot(self, host, peer)
        self.slots.add(slot)
        self.silent[slot] = None
        self._strangers.add(slot)
        self._by_host[host] += 1
        return slot

    def _full(self, host: str) -> TooManyConnections | None:
        limits = self.limits
        if len(self.slots) >= limits.connections:
            text = "the broker has %d connections and takes no more (--max-connections, ulimit -n): try again later"
            return _too_many(text, "connections", limits.connections)
        text = "the broker has %d connections %sthat have not logged in: log in immediately, or try again later"
        if len(self._strangers) >= limits.strangers:
            return _too_many(text.replace("%s", ""), "strangers", limits.strangers)
        if host and self._by_host[host] >= limits.strangers_per_host:
            return _too_many(text.replace("%s", "of your host "), "host", limits.strangers_per_host)
        return None

    def too_slow(self, slot: Slot, what: str, seconds: float) -> None:
        """End a connection whose deadline for the Hello or the Resume has passed."""
        text = f"no {what} within {seconds:g} s of {'connecting' if what == 'Hello' else 'the login'}: connect again"
        self._turn_away(slot, GreetingTimeout(text, seconds=seconds))

    def _turn_away(self, slot: Slot, exc: TooManyConnections | GreetingTimeout) -> None:
        """End a stranger's connection, whose slot is freed when its socket is closed."""
        slot.logged_in()
        slot.turn_away(exc)

    def forget_stranger(self, slot: Slot) -> None:
        """Stop counting a client as a stranger, because it logged in or disconnected."""
        if slot in self._strangers:
            self._strangers.discard(slot)
            self._by_host[slot.host] -= 1
            if not self._by_host[slot.host]:
                del self._by_host[slot.host]


def _too_many(text: str, what: str, limit: int) -> TooManyConnections:
    return TooManyConnections(text % limit, what=what, limit=limit)
