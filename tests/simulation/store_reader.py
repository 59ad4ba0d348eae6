"""A client that declares the queues before a run, and reads the store after it."""

from __future__ import annotations

import msgspec

from kombu_opendata import QueueClient
from kombu_opendata.protocol import messages as m

from ..histories import events as e
from ..histories.programs import KEYS, TENANTS, THROTTLED, WEIGHTED
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
    measure_shares,
    read_definition,
)
from ..histories.store_reader import store_of
from .clients import OPTIONS, Client, Surroundings
from .plan import ARGUMENTS, COMMANDS, CONTROL, ROOT, TASKS, Step
from .queue_clients import ALTERED

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
        definitions = store.definitions | {name: read_definition(self.client, name) for name in ALTERED}
        self._count_slots()
        if not self._was_read_by_groups():
            measure_shares(self.client, self.record)
        if rest_seconds > _FULL_SECONDS:
            self._count_tokens()
        self.store = msgspec.structs.replace(store, results=results, definitions=definitions)

    def _was_read_by_groups(self) -> bool:
        """Return True if the queue with weights was read by groups since the last start of a broker."""
        began_at = max(event.at for event in self.around.events if isinstance(event, e.Started))
        delivered = (event for event in self.around.events if isinstance(event, e.Delivered) and event.at > began_at)
        return any(event.queue == WEIGHTED and event.order for event in delivered)

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
