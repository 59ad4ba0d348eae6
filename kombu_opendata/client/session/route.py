"""Order in which the brokers of an address are tried, and the error if none of them accepts the session.

A client goes only to the hosts of its URL, and does not follow the name in a standby's NotActive: a compromised host
could otherwise redirect the secret to any other host. All hosts are tried within a fraction of a second, so following
the name would save little.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Generator, Hashable, Iterable, Iterator

from ...errors import ConnectionLost, NotActive, OpenDataError, RetryLater
from ...url import Address
from ..client_clock import ClientClock
from ..connection_options import Options
from ..socket.connect import connect_memory, connect_socket_url, unreachable
from ..socket.dial import Endpoint, dial, resolve

FIRST_BACKOFF_SECONDS = 0.05
MAX_BACKOFF_SECONDS = 1.0
Attempt = tuple[Endpoint, socket.socket | OpenDataError, float]
#: longest interval of heartbeats if the URL has several hosts, so that the client soon tries them after the loss of one
LIST_HEARTBEAT_SECONDS = 5.0


class BrokerRoute:
    """Route of one connection to its brokers.

    Attributes:
        address: the address of all brokers.
        active: the broker that accepted the session last.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.active: Address | None = None
        self._resolved: dict[Address, list[Endpoint]] = {}  # the last results, for failures of the resolver
        self._failures: dict[Hashable, int] = {}  # number of the last failure by place, -1 for the last success
        self._count = 0

    def attempts(self, options: Options, clock: ClientClock) -> Generator[Attempt, None, None]:
        """Yield an attempt for each endpoint until the caller stops: first the one that worked last, then the others.

        An attempt has the endpoint, the connected socket or the error, and the seconds to wait for the broker's first
        bytes.

        All attempts together take ``connect_timeout``. A host that accepts the connection and sends nothing uses only
        its share of that time. A host that has sent bytes is alive, and may take ``connect_timeout`` for the login, as
        many clients may connect concurrently.
        """
        ends_at = clock.monotonic() + options.connect_timeout
        endpoints: list[Endpoint] = []
        for broker in self.address.each:
            try:
                self._resolved[broker] = resolve(broker)
            except OSError as exc:
                if broker not in self._resolved:
                    yield Endpoint(broker, 0, ""), unreachable(broker, exc), 0.0
            endpoints += self._resolved.get(broker, ())
        endpoints.sort(key=lambda endpoint: self._failures.get(endpoint.place, 0))
        remaining = len(endpoints)
        for endpoint, result in _open(self.address, endpoints, options, clock):
            share = max(ends_at - clock.monotonic(), 0.0) / remaining if len(endpoints) > 1 else options.connect_timeout
            yield endpoint, result, share
            remaining -= 1

    def heartbeat(self, options: Options) -> float:
        """Return the requested interval of the broker's messages, in seconds; 0 leaves the interval to the broker."""
        if not self.address.others:
            return options.heartbeat
        return min(options.heartbeat or LIST_HEARTBEAT_SECONDS, LIST_HEARTBEAT_SECONDS)

    def worked(self, endpoint: Endpoint) -> None:
        """Record that the broker accepted the session at this endpoint, which is tried first the next time."""
        self.active = endpoint.broker
        self._failures = {endpoint.place: -1}

    def failed(self, endpoint: Endpoint) -> None:
        """Record that no active broker answered at this endpoint; the others are tried first."""
        self._count += 1
        self._failures[endpoint.place] = self._count

    def refusal(self, refusals: list[OpenDataError]) -> OpenDataError:
        """Return the error with the reasons why no broker accepted the session.

        Errors that waiting can't resolve come first, as the active broker may have sent them.
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
    """Return the pause after one more failure; it is random, so that clients don't reconnect simultaneously."""
    return min(2 * pause, MAX_BACKOFF_SECONDS) * random.uniform(0.7, 1.0)


def _weight(error: OpenDataError) -> int:
    if isinstance(error, NotActive):
        return 1
    return 0 if isinstance(error, ConnectionLost) else 2 if isinstance(error, RetryLater) else 3


def _open(
    address: Address, endpoints: Iterable[Endpoint], options: Options, clock: ClientClock
) -> Iterator[tuple[Endpoint, socket.socket | OpenDataError]]:
    if address.kind == "tcp":
        for endpoint, outcome in dial(endpoints, options.connect_timeout):
            yield endpoint, unreachable(endpoint.broker, outcome) if isinstance(outcome, OSError) else outcome
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
    from ..launch_broker import attach  # only folders have a broker that a client may start

    return attach(broker, options, clock)
