"""A client that declares the queues before a run, and reads the store after it."""

from __future__ import annotations

from kombu_opendata import QueueClient
from kombu_opendata.protocol import messages as m

from ..histories import events as e
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
        self.is_ready = True

    def read(self) -> None:
        """Read the store in this client's fiber."""
        self.take(Step(0.0, self.name, "read_all"))

    def read_all(self) -> None:
        self.store = store_of(self.client, ARGUMENTS)
