"""A client that declares the queues before a run, and reads the store after it."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import msgspec

from kombu_opendata import QueueClient
from kombu_opendata.protocol import messages as m

from ..histories import events as e
from ..histories.queue_programs import (
    BOX,
    DEFINITIONS,
    EXCHANGE,
    GRAVEYARD,
    LETTERS,
    ROWS,
    STEERED,
    create_box,
    create_letters,
)
from ..histories.store_reader import store_of
from .clients import OPTIONS, Client, Surroundings
from .plan import (
    ARGUMENTS,
    COMMANDS,
    CONTROL,
    GROUP_MESSAGES,
    KEYS,
    ROOT,
    TASKS,
    TENANTS,
    THROTTLED,
    WEIGHTED,
    WEIGHTS,
    Step,
)
from .queue_clients import ALTERED, SHARES, definition

#: time after which all buckets are full of tokens
_FULL_SECONDS = 20.0


class StoreReader(Client):
    """The client. ``store`` is what it has read."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__("store-reader", around)
        self.is_ready = False
        self.store: e.Store | None = None

    def begin(self) -> None:
        client = self.client = QueueClient(
            f"opendata+memory://{self.around.address}", user=ROOT, clock=self.clock, **OPTIONS
        )
        for queue, arguments in ARGUMENTS.items():
            client.calls.call(m.DeclareQueue(0, queue, True, False, False, arguments, False))
        create_letters(client)
        create_box(client)
        self.record.run(e.Define(name=f"queue {STEERED}", value=True), lambda: client.create(STEERED))
        client.create(ROWS)
        client.declare_exchange(EXCHANGE)
        client.create(COMMANDS)
        client.calls.call(m.DeclareExchange(0, CONTROL, "fanout", True, False, {}, False))
        client.calls.call(m.Bind(0, COMMANDS, CONTROL, "", {}))
        self.is_ready = True

    def read(self, rest_seconds: float) -> None:
        """Read the store in this client's fiber, after so much time of the broker's clock without clients."""
        self.take(Step(0.0, self.name, "read_all", {"rest_seconds": rest_seconds}))

    def read_all(self, rest_seconds: float) -> None:
        store = store_of(self.client, (*ARGUMENTS, LETTERS, GRAVEYARD, ROWS, BOX), definitions=DEFINITIONS)
        calls = [event.operation for event in self.around.events if isinstance(event, e.Called)]
        tasks = sorted({call.task for call in calls if isinstance(call, e.StoreResult)})
        values = self.client.calls.call(m.GetResults(0, [task.encode() for task in tasks])).values if tasks else []
        results = {task: value.decode() for task, value in zip(tasks, values, strict=True) if value is not None}
        definitions = store.definitions | {name: definition(self.client, name) for name in ALTERED}
        self._count_slots()
        self._measure_shares()
        if rest_seconds > _FULL_SECONDS:
            self._count_tokens()
        self.store = msgspec.structs.replace(store, results=results, definitions=definitions)

    def _count_slots(self) -> None:
        """Measure the slots that are taken, although no client is left."""
        for queue in (TENANTS, TASKS):
            page = self.client.list_partitions(queue)
            used = sum(partition.in_flight + partition.running for partition in page.partitions)
            self.record.add(e.Measured, name=f"slots of partitions of {queue}", value=used, limit=0)
            self.client.alter(queue, {"x-concurrency": 1})
            is_full = self.client.list_partitions(queue).limited_by == "concurrency"
            self.record.add(e.Measured, name=f"slots of {queue}", value=int(is_full), limit=0)

    def _count_tokens(self) -> None:
        """Measure what a full bucket with one token delivers."""
        self.client.send_batch(THROTTLED, [b"waits"] * 2, [{"tenant": key} for key in KEYS[:2]])
        tokens = len(self.client.read(THROTTLED, qty=2))
        self.record.add(e.Measured, name=f"lost tokens of {THROTTLED}", value=max(1 - tokens, 0), limit=0)
        self.record.add(e.Measured, name=f"tokens of {THROTTLED}", value=tokens, limit=1)

    def _measure_shares(self) -> None:
        """Measure how far the partitions of a queue are from their shares while messages of all wait.

        In fair queueing, no two of them are further apart than a message of each, by their weights. What is read first
        may have waited by the weights before an alteration, or for the share of a group that gave several messages.
        """
        weights = definition(self.client, SHARES) or WEIGHTS
        shares = {key: weights.get(key) or weights.get("*") or 1 for key in KEYS}
        count, before = 2 * sum(shares.values()), GROUP_MESSAGES * sum(shares.values())
        for key in KEYS:
            self.client.send_batch(WEIGHTED, [b"waits"] * (count + before), [{"tenant": key}] * (count + before))
        self.client.read(WEIGHTED, qty=before)
        found = Counter(message.headers["tenant"] for message in self.client.read(WEIGHTED, qty=count))
        for one, other in combinations(KEYS, 2):
            distance = abs(found[one] / shares[one] - found[other] / shares[other])
            limit = 1 / shares[one] + 1 / shares[other]
            self.record.add(
                e.Measured, name=f"distance of {one} from {other}", value=round(distance / limit, 3), limit=1
            )
