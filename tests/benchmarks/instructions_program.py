"""The program whose instructions :mod:`.instructions` counts: clients and a broker in one process.

The client is the main thread, and the broker another one, with a journal in a folder and a real socket between them.
Each calls ``os.getppid``, which does nothing else in this process, at the end of each stretch: callgrind then writes
the instructions of the thread since its last call.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from itertools import repeat
from threading import Event
from typing import Any, TypeVarTuple

import uvloop

import kombu_opendata  # noqa: F401 - registers the transport
from kombu_opendata.broker.memory import MemoryBroker, register
from kombu_opendata.broker.wire.broker_settings import BrokerSettings

from .clients import BODY, HEADERS
from .kombu_api import Connection

Arguments = TypeVarTuple("Arguments")
#: by how much callgrind slows the program down, and more: no timer of the broker falls into a stretch
_SLOWER = 1000
_WARM_UP = 100


class SlowLoop(uvloop.Loop):
    """A loop with slow timers, whose clock stands still: without callgrind, no step would count as slow."""

    time = repeat(0.0).__next__  # a call without Python code, as of the loop's own clock

    def call_later(
        self, delay: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_later(_SLOWER * delay, callback, *args, context=context)


class SlowLoops(asyncio.DefaultEventLoopPolicy):
    """Makes these loops."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return SlowLoop()


class CountedBroker(MemoryBroker):
    """A broker of a folder, in a thread."""

    def mark(self) -> None:
        """End a stretch of the broker's thread and of this one."""

        async def end() -> None:
            os.getppid()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        os.getppid()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the broker wait, so that the number of messages that it reads together does not depend on the threads."""
        waits, goes_on = Event(), Event()

        def wait() -> None:
            waits.set()
            goes_on.wait()

        self._loop.call_soon_threadsafe(wait)
        waits.wait()
        try:
            yield
        finally:
            goes_on.set()


def publish(channel: Any, count: int) -> None:
    """Publish, each with its confirm."""
    body = json.dumps(BODY)
    for _ in range(count):
        message = channel.prepare_message(
            body, 0, "application/json", "utf-8", dict(HEADERS), {"delivery_mode": 2, "priority": 0}
        )
        channel.basic_publish(message, "", "counted")


def deliver(connection: Any, channel: Any, count: int) -> list[Any]:
    """Receive messages without an ack."""
    received: list[Any] = []
    tag = channel.basic_consume("counted", callback=received.append)
    while len(received) < count:
        connection.drain_events(timeout=600)
    channel.basic_cancel(tag)
    return received


def main(folder: str, count: int) -> None:
    """Measure a round of ``count`` messages, and one of twice as many."""
    asyncio.set_event_loop_policy(SlowLoops())
    broker = CountedBroker("counted", BrokerSettings(f"file://{folder}", create_instances=True))
    register("counted", broker)
    sys.setswitchinterval(1000)  # the threads change only where they wait
    gc.disable()
    with Connection("opendata+memory://counted") as connection:
        channel = connection.channel()
        channel.queue_declare("counted", durable=True, auto_delete=False)
        for messages, mark in ((_WARM_UP, int), (count, broker.mark), (2 * count, broker.mark)):
            _measure(broker, connection, channel, messages, mark)
        os._exit(0)  # SlateDB's threads may still call Python, which would abort at the interpreter's end


def _measure(broker: CountedBroker, connection: Any, channel: Any, messages: int, mark: Any) -> None:
    flush = partial(channel.queue_declare, "counted", passive=True, auto_delete=False)
    mark()
    publish(channel, messages)
    mark()
    received = deliver(connection, channel, messages)
    mark()
    with broker.held():
        for message in received:
            channel.basic_ack(message.delivery_tag)
    flush()
    mark()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
