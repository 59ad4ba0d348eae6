"""Publishes and takes messages while other code of its thread publishes, too: interrupted.py URL HOW COUNT.

HOW is "signal", "fork" (in a signal handler), "finalizer" or "client" (a QueueClient, in a signal handler). It prints
the number of messages that the main code sent and that the other code sent; each is in the queue of the same name then.
"""

import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import kombu as _kombu
from patience import PATIENT  # type: ignore[import-not-found]  # it stands beside this program

from kombu_opendata import QueueClient

#: as Any: the package says it is typed, but most of its functions are not
kombu: Any = _kombu


class Program:
    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = kombu.Connection(url, transport_options=PATIENT)
        self.channel = self.connection.channel()
        for name in ("main", "inner", "work"):
            kombu.Queue(name, durable=True)(self.channel).declare()
        self.producer = self.connection.Producer()
        self.sent = {"main": 0, "inner": 0}
        self.send("main")
        self.client = QueueClient(url, **PATIENT)

    def send(self, queue: str) -> None:
        self.producer.publish({"n": self.sent[queue]}, routing_key=queue)
        self.sent[queue] += 1

    def fork(self) -> None:
        child = os.fork()
        if not child:
            self.send("inner")
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            self.sent["inner"] += 1

    def send_by_client(self) -> None:
        self.client.send("inner", {"by": "client"})
        self.sent["inner"] += 1

    def work(self, by_client: bool) -> None:
        """A publish, and a message that is sent, taken and acknowledged."""
        if by_client:
            self.client.send("main", {"by": "client"})
            self.sent["main"] += 1
            return
        self.send("main")
        self.producer.publish("x", routing_key="work")
        self.channel.basic_get("work").ack()


class Cycle:
    """Publishes when the garbage collector finds it."""

    def __init__(self, publish: Callable[[], None]) -> None:
        self.itself = self
        self._publish = publish

    def __del__(self) -> None:
        self._publish()


def main(url: str, how: str, count: int) -> None:
    program, chance = Program(url), random.Random(1)
    inner: dict[str, Callable[[], None]] = {"fork": program.fork, "client": program.send_by_client}
    handle = inner.get(how, lambda: program.send("inner"))
    if how == "finalizer":
        gc.set_threshold(50, 1, 1)
    signal.signal(signal.SIGALRM, lambda *_: handle())
    quickest = 0.003  # seconds that the work took without an interruption: on every machine about half are interrupted
    for _ in range(count):
        if how == "finalizer":
            Cycle(handle)
        else:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00002, 2 * quickest))
        began_at = time.monotonic()
        program.work(how == "client")
        signal.setitimer(signal.ITIMER_REAL, 0)
        quickest = min(quickest, time.monotonic() - began_at)
    gc.set_threshold(0)
    gc.collect()
    program.connection.close()
    program.client.close()
    print(json.dumps(program.sent))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
