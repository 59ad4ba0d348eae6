"""Which broker of an address to try first, and what it means when none of them takes the session.

A client goes only to the hosts of its URL, and does not follow the name in a standby's NotActive: whoever answers on a
host that someone took over could otherwise have the secret sent anywhere. As all hosts are tried within a fraction of a
second, nothing is lost by that.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Generator, Hashable, Iterable, Iterator
from typing import NamedTuple

from ...errors import ConnectionLost, NotActive, OpenDataError, RetryLater
from ...url import Address
from ..clock import ClientClock
from ..connection_options import Options
from ..socket.connect import connect_memory, connect_socket_url, unreachable
from ..socket.dial import Endpoint, dial, resolve

FIRST_BACKOFF_SECONDS = 0.05
MAX_BACKOFF_SECONDS = 1.0
#: with a list of hosts, the longest interval of heartbeats: the host of a silent broker may be gone for good
LIST_HEARTBEAT_SECONDS = 5.0


class DialOutcome(NamedTuple):
    """One place: a connected socket, or why there is none."""

    endpoint: Endpoint
    result: socket.socket | OpenDataError
    seconds: float  # for its first word


class BrokerRoute:
    """The way of one connection to its brokers.

    Attributes:
        address: of all of them.
        active: the one that took the session last.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.active: Address | None = None
        self._resolved: dict[Address, list[Endpoint]] = {}  # what was found last, for when the resolver is gone, too
        self._failures: dict[Hashable, int] = {}  # by place, the later the higher; below 0: it worked last
        self._count = 0

    def attempts(self, options: Options, clock: ClientClock) -> Generator[DialOutcome, None, None]:
        """Connect to each place until the caller has had enough: to the one that worked last, then to the others.

        All of them together take ``connect_timeout``. A host that connects and says nothing takes its share of that, so
        that the next one has a turn. One that has said something is alive, and may take ``connect_timeout`` for the
        login: many clients may come at once.
        """
        ends_at = time.monotonic() + options.connect_timeout
        endpoints: list[Endpoint] = []
        for broker in self.address.each:
            try:
                self._resolved[broker] = resolve(broker)
            except OSError as exc:
                if broker not in self._resolved:
                    yield DialOutcome(Endpoint(broker, 0, ""), unreachable(broker, exc), 0.0)
            endpoints += self._resolved.get(broker, ())
        endpoints.sort(key=lambda endpoint: self._failures.get(endpoint.place, 0))
        left = len(endpoints)
        for endpoint, result in _open(self.address, endpoints, options, clock):
            share = max(ends_at - time.monotonic(), 0.0) / left if len(endpoints) > 1 else options.connect_timeout
            yield DialOutcome(endpoint, result, share)
            left -= 1

    def heartbeat(self, options: Options) -> float:
        """How often the broker shall send something, in seconds; 0 leaves the interval to the broker."""
        if not self.address.others:
            return options.heartbeat
        return min(options.heartbeat or LIST_HEARTBEAT_SECONDS, LIST_HEARTBEAT_SECONDS)

    def worked(self, endpoint: Endpoint) -> None:
        """The broker took the session there: try that first the next time."""
        self.active = endpoint.broker
        self._failures = {endpoint.place: -1}

    def failed(self, endpoint: Endpoint) -> None:
        """Nobody answered there, or not the active broker: try the others first."""
        self._count += 1
        self._failures[endpoint.place] = self._count

    def refusal(self, refusals: list[OpenDataError]) -> OpenDataError:
        """The error that says why no broker took the session.

        What can't be cured by waiting comes first: the active broker may have said it.
        """
        worst = max(refusals, key=_weight)
        texts = list(dict.fromkeys(refusal.text for refusal in refusals))
        if isinstance(worst, NotActive) and not self.address.others:
            texts.append(
                "a client goes only to the hosts in its URL: name all of them, opendata://host-a,host-b/instance"
            )
        if len(texts) == 1:
            return worst
        error = type(worst)("; ".join(texts), **worst.values)
        error.__cause__ = worst
        return error


def longer(pause: float) -> float:
    """The pause after one more failure; random, so that all clients of a broker don't come at the same instant."""
    return min(2 * pause, MAX_BACKOFF_SECONDS) * random.uniform(0.7, 1.0)


def _weight(error: OpenDataError) -> int:
    if isinstance(error, NotActive):
        return 1
    return 0 if isinstance(error, ConnectionLost) else 2 if isinstance(error, RetryLater) else 3


def _open(
    address: Address, endpoints: Iterable[Endpoint], options: Options, clock: ClientClock
) -> Iterator[tuple[Endpoint, socket.socket | OpenDataError]]:
    if address.kind == "tcp":
        for endpoint, found in dial(endpoints, options.connect_timeout):
            yield endpoint, unreachable(endpoint.broker, found) if isinstance(found, OSError) else found
        return
    for endpoint in endpoints:
        try:
            result: socket.socket | OpenDataError = _connect(endpoint.broker, options, clock)
        except OpenDataError as exc:
            result = exc
        yield endpoint, result


def _connect(broker: Address, options: Options, clock: ClientClock) -> socket.socket:
    if broker.kind == "memory":
        return connect_memory(broker.name)
    if broker.kind == "unix":
        return connect_socket_url(broker, options)
    from ..launch_broker import attach  # only a folder has a broker that a client may start

    return attach(broker, options, clock)
