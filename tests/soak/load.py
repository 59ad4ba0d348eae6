"""The load of a soak: a session that lives as long as the broker, and others that come and go."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import encode_envelope
from kombu_opendata.protocol.queue_arguments import FILTER
from kombu_opendata.protocol.unique_key import UNTIL_DONE, OnConflict, UniqueKey

from ..support.raw import publish
from .accelerated import HOUR, LARGE_BYTES, AcceleratedBroker, Client

STEP_SECONDS = 300
PINGS = 20
_STEPS_OF_AN_HOUR = HOUR // STEP_SECONDS
#: message ids begin this far below those of messages that are not stored
_IDS_LEFT = 1 << 26
_KEPT: dict[str, Any] = {"x-done-retention": HOUR, "x-failed-retention": 6 * HOUR}
_QUEUES: dict[str, dict[str, Any]] = {
    "work": {**_KEPT, "x-delivery-limit": 3},
    "delayed": _KEPT,
    "expiring": {**_KEPT, "x-message-ttl": 600_000},
    "bounded": {**_KEPT, "x-max-length": 20},
    "filtered": {**_KEPT, FILTER: "kind = 'b'", "x-message-ttl": 3_600_000},
    "letters": {**_KEPT, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": 400_000},
    "throttled": {**_KEPT, "x-rate": "12/h:2", "x-message-ttl": 3_600_000},  # half of its messages expire
    "tenants": {**_KEPT, "x-partition-by": "tenant", "x-partition-concurrency": 1},
}
_CONSUMED = ("work", "throttled", "tenants")


class Load:
    """What happens in each step and in each hour; ``counts`` has what happened."""

    def __init__(self, broker: AcceleratedBroker) -> None:
        self._broker = broker
        self._client = Client(broker, b"the long session")
        self._numbers = itertools.count(1)
        self.counts = {"messages": 0, "pings": 0, "sessions": 0}

    async def begin(self) -> None:
        """Declare the queues, and consume."""
        state = self._broker.instance.engine.state
        state.next_id = max(state.next_id, (1 << 62) - _IDS_LEFT)
        await self._client.connect()
        for name, arguments in _QUEUES.items():
            await self._client.call(m.DeclareQueue(0, name, True, False, False, arguments, False))
        await self._client.call(m.DeclareExchange(0, "topic", "topic", True, False, {}, False))
        await self._client.call(m.Bind(0, "bounded", "topic", "a.#", {}))
        await self._client.call(m.Qos(0, 1, 50))
        for queue in _CONSUMED:
            await self._client.call(m.Consume(0, 1, queue, queue, False, False, {}))
        self._client.send(m.Credit(1, 1 << 40))

    async def step(self) -> None:
        """Publish to each queue, settle what was delivered, and let five minutes pass."""
        client, now = self._client, self._broker.clock.now_ms()
        number = next(self._numbers)
        confirms = [await reply for reply in [client.begin(each) for each in self._publishes(number, now)]]
        assert sum(confirm.holder is None for confirm in confirms[-2:]) == 1, confirms[-2:]
        self.counts["messages"] += len(confirms) - 1
        value = _body(number, is_large=number % 4 == 0)
        await client.call(m.StoreResult(0, b"result %d" % (number % 500), 2, value, 3_600_000))
        self._settle()
        await client.call(m.Read(0, "delayed", 5, 1000, pop=True))
        await client.ping(PINGS)
        self.counts["pings"] += PINGS
        if number % _STEPS_OF_AN_HOUR == 0:
            await self._hour(number // _STEPS_OF_AN_HOUR)
        await self._broker.advance(STEP_SECONDS)

    def _publishes(self, number: int, now: int) -> list[m.Publish]:
        """Return the publishes of a step; of the last two, which have the same unique key, one is stored."""
        unique = UniqueKey(f"key {number % 500}", (UNTIL_DONE, 900_000)[number % 2], OnConflict.RETURN)
        return [
            self._publish("work", now, number),
            self._publish("work", now, number, is_large=True),
            self._publish("letters", now, number, is_large=True),
            self._publish("expiring", now, number),
            self._publish("delayed", now, number, visible_at_ms=now + 3_600_000),
            self._publish("a.b", now, number, exchange="topic"),
            *(self._publish("throttled", now, number) for _ in range(2)),
            *(self._publish("tenants", now, number) for _ in range(2)),
            *(self._publish("work", now, number, unique=unique) for _ in range(2)),
        ]

    def _publish(self, key: str, now: int, number: int, *, is_large: bool = False, **fields: Any) -> m.Publish:
        self._client.seq += 1
        # a tenant has its messages within an hour, half of which wait for the others; it returns after two days
        tenant = f"tenant {number // _STEPS_OF_AN_HOUR % 48}"
        headers = {"task": f"task {number % 7}", "kind": "ab"[number % 2], "tenant": tenant}
        envelope = encode_envelope(_body(number, is_large=is_large), None, None, headers, {}, "", key)
        return publish(key, self._client.seq, envelope, created_at_ms=now, **fields)

    def _settle(self) -> None:
        deliveries, self._client.deliveries = self._client.deliveries, []
        for outcome, some in (
            (m.Outcome.REJECT, deliveries[::10]),
            (m.Outcome.REQUEUE, deliveries[1::10]),
            (m.Outcome.ACK, [each for place, each in enumerate(deliveries) if place % 10 > 1]),
        ):
            if some:
                self._client.settle(outcome, some)

    async def _hour(self, number: int) -> None:
        """Let a client come and go; replay an hour, and run failed messages again."""
        other = Client(self._broker, number.to_bytes(16, "little"))
        await other.connect()
        name = f"of one client {number}"
        await other.call(m.DeclareQueue(0, name, False, True, False, {}, False))
        await other.call(m.Bind(0, name, "topic", f"b.{number}", {}))
        await other.call(m.Get(0, 1, "work", False))
        await other.call(m.OpenChord(0, b"chord %d" % number, 3_600_000, 3))
        await self._client.call(m.Replay(0, "bounded", "first", "now"))
        await self._client.call(m.Redrive(0, "work", limit=5))
        if number % 2:
            await other.call(m.Goodbye(0))
        other.close()
        self.counts["sessions"] += 1


def _body(number: int, *, is_large: bool) -> bytes:
    """Return a body; a large one is written to a payload segment, every second of them compressed."""
    if not is_large:
        return b"e" * (200 + number % 100)
    return b"e" * LARGE_BYTES if number % 2 else Random(number).randbytes(LARGE_BYTES)
