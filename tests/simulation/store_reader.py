"""A client that declares the queues before a run, and reads the store after it."""

from __future__ import annotations

import msgspec

from kombu_opendata import QueueClient
from kombu_opendata.protocol import messages as m

from ..histories import events as e
from ..histories.queue_programs import DEFINITIONS, EXCHANGE, GRAVEYARD, LETTERS, ROWS, STEERED, create_letters
from ..histories.store_reader import store_of
from .clients import TIMES, Client, Surroundings
from .plan import ARGUMENTS, Step


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
        self.store = msgspec.structs.replace(store, results=results)
