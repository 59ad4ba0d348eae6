"""A client that declares the queues before a run, and reads the store after it."""

from __future__ import annotations

import msgspec

from kombu_opendata import QueueClient
from kombu_opendata.protocol import messages as m

from ..histories import events as e
from ..histories.queue_programs import DEFINITIONS, EXCHANGE, GRAVEYARD, LETTERS, ROWS, STEERED, create_letters
from ..histories.store_reader import store_of
from .clients import ALTERED, TIMES, Client, Surroundings, definition
from .plan import ARGUMENTS, TASKS, TENANTS, Step


class StoreReader(Client):
    """The client. ``store`` is what it has read."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__("store-reader", around)
        self.is_ready = False
        self.store: e.Store | None = None

    def begin(self) -> None:
        client = self.client = QueueClient(f"opendata+memory://{self.around.address}", clock=self.clock, **TIMES)
        for queue, arguments in ARGUMENTS.items():
            client.calls.call(m.DeclareQueue(0, queue, True, False, False, arguments, False))
        create_letters(client)
        self.record.run(e.Define(name=f"queue {STEERED}", value=True), lambda: client.create(STEERED))
        client.create(ROWS)
        client.declare_exchange(EXCHANGE)
        self.is_ready = True

    def read(self) -> None:
        """Read the store in this client's fiber."""
        self.take(Step(0.0, self.name, "read_all"))

    def read_all(self) -> None:
        store = store_of(self.client, (*ARGUMENTS, LETTERS, GRAVEYARD, ROWS), definitions=DEFINITIONS)
        calls = [event.operation for event in self.around.events if isinstance(event, e.Called)]
        tasks = sorted({call.task for call in calls if isinstance(call, e.StoreResult)})
        values = self.client.calls.call(m.GetResults(0, [task.encode() for task in tasks])).values if tasks else []
        results = {task: value.decode() for task, value in zip(tasks, values, strict=True) if value is not None}
        definitions = store.definitions | {name: definition(self.client, name) for name in ALTERED}
        self.store = msgspec.structs.replace(store, results=results, definitions=definitions)
        self._count_slots()

    def _count_slots(self) -> None:
        """Measure the slots that are taken, although no client is left."""
        for queue in (TENANTS, TASKS):
            page = self.client.list_partitions(queue)
            used = sum(partition.in_flight + partition.running for partition in page.partitions)
            self.record.add(e.Measured, name=f"slots of partitions of {queue}", value=used, limit=0)
            self.client.alter(queue, {"x-concurrency": 1})
            is_full = self.client.list_partitions(queue).limited_by == "concurrency"
            self.record.add(e.Measured, name=f"slots of {queue}", value=int(is_full), limit=0)
