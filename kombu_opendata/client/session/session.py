"""What of a client survives its socket: the session.

Leases that the client holds, settlements that the broker has not confirmed, consumers, prefetch limits, transient
topology and the publish counter. After a reconnect :meth:`Session.resume` has the first two, :meth:`Session.replay` the
rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from ...protocol.messages import Consume, Credit, Delivery, Hello, Lease, Qos, Resume, Settle
from .declared import Declaration, Topology


class Session:
    """The state of one session.

    Attributes:
        id: 16 random bytes that name it.
        client: 16 random bytes that are the same in all sessions of one client; empty: this is the only one.
        last_seq: number of the last publish, from 1 up.
        held: leases in the client's hands, read or not, with the channel of each.
        unconfirmed: settlements that were made and not confirmed, in order: outcome, queue, id, token.
        consumers: by channel and tag.
        prefetch: by channel.
        credit: deliveries that may still come, by channel; a channel that is not in it has no such limit.
    """

    def __init__(self, session_id: bytes) -> None:
        self.id = session_id
        self.client = b""
        self.last_seq = 0
        self.held: dict[Lease, int] = {}
        self.unconfirmed: deque[tuple[int, str, int, int]] = deque()
        self.consumers: dict[tuple[int, str], Consume] = {}
        self.prefetch: dict[int, int] = {}
        self.credit: dict[int, int] = {}
        self.topology = Topology()
        self._settled = 0  # leases settled on this connection
        self.confirmed = 0  # of those, how many the broker confirmed

    def take(self, deliveries: Iterable[Delivery]) -> None:
        """Deliveries came in: their leases are now in the client's hands."""
        held, consumers = self.held, self.consumers
        for channel, tag, queue, message_id, token, _attempts, _envelope, _redelivered in deliveries:
            consumer = consumers.get((channel, tag))
            if tag and channel in self.credit:
                self.credit[channel] -= 1
            if consumer is None or not consumer.no_ack:
                held[queue, message_id, token] = channel

    def settle(self, outcome: int, channel: int, leases: list[Lease]) -> Settle:
        """Settle leases; returns the message that says so to the broker."""
        held, unconfirmed = self.held, self.unconfirmed
        for lease in leases:
            held.pop(lease, None)
            unconfirmed.append((outcome, *lease))
        self._settled += len(leases)
        return Settle(self._settled, outcome, channel, leases)

    def confirm(self, settled: int) -> None:
        """The broker has applied this many of the connection's settlements."""
        unconfirmed = self.unconfirmed
        for _ in range(min(settled - self.confirmed, len(unconfirmed))):
            unconfirmed.popleft()
        self.confirmed = max(settled, self.confirmed)

    def hello(
        self, rid: int, name: str, instance: str, user: str, secret: str, *, resume: bool, heartbeat_ms: int = 0
    ) -> Hello:
        """The first message of a connection."""
        hello = Hello(rid, self.id, name, instance, user, secret, resume, heartbeat_ms=heartbeat_ms, client=self.client)
        hello.resume_follows = resume
        return hello

    def resume(self, rid: int) -> Resume:
        """What the client has of the session, for the broker that the Hello was for."""
        return Resume(rid, [(channel, *lease) for lease, channel in self.held.items()], list(self.unconfirmed))

    def welcomed(self) -> None:
        """The broker took the Hello, and with it all settlements: a new connection counts from 0."""
        self.unconfirmed.clear()
        self._settled = self.confirmed = 0

    def credits(self) -> Iterator[Credit]:
        """What to tell the broker again before its consumers start."""
        for channel, count in self.credit.items():
            yield Credit(channel, count)

    def replay(self) -> Iterator[Declaration | Qos | Consume]:
        """What to tell the broker again after a resume, in order."""
        yield from self.topology.declarations()
        for channel, prefetch in self.prefetch.items():
            yield Qos(0, channel, prefetch)
        yield from self.consumers.values()

    def cancelled(self, channel: int, tag: str) -> None:
        """A consumer ended."""
        consumer = self.consumers.pop((channel, tag), None)
        if consumer is None or any(other.queue == consumer.queue for other in self.consumers.values()):
            return
        if self.topology.is_auto_delete(consumer.queue):
            self.topology.forget_queue(consumer.queue)

    def close_channel(self, channel: int) -> None:
        """A channel ended: its consumers are gone, and what it held goes back."""
        for key in [key for key in self.consumers if key[0] == channel]:
            self.cancelled(*key)
        self.prefetch.pop(channel, None)
        self.credit.pop(channel, None)
        self.held = {lease: owner for lease, owner in self.held.items() if owner != channel}
