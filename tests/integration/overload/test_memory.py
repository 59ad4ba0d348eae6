"""The memory of a real broker process: bounded whatever clients do, and publishers wait at its limit."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable
from pathlib import Path

import pytest

from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import frame
from kombu_opendata.protocol.messages import queue_messages as q
from kombu_opendata.protocol.task_reports import TaskReport, TaskState

from ...support.processes import wait_until
from ...support.raw import RawClient, publish
from ...support.served import ServedBroker

MB = 1 << 20


def resident_bytes(broker: ServedBroker) -> int:
    return int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Publisher:
    """Publishes without waiting for each answer, up to a window; notes the highest memory of the broker."""

    def __init__(self, broker: ServedBroker, raw: RawClient, queue: str) -> None:
        self.broker, self.raw, self.queue = broker, raw, queue
        self.seq = self.answered = self.highest_bytes = 0

    def send(self, size: int) -> None:
        self.seq += 1
        # the first byte is not that of an array, so no broker takes it for an envelope
        message = publish(self.queue, self.seq, (b"\0" + os.urandom(15)) * (size // 16))
        message.rid = self.seq
        self.raw.send_bytes(frame(message))

    def take_answer(self) -> None:
        answer = self.raw.receive()
        assert isinstance(answer, m.PublishConfirm), answer
        self.answered += 1
        if self.answered % 16 == 0:
            self.highest_bytes = max(self.highest_bytes, resident_bytes(self.broker))

    def publish(self, total: int, size: int, window: int) -> None:
        for _ in range(total // size):
            if self.seq - self.answered >= window:
                self.take_answer()
            self.send(size)
        while self.answered < self.seq:
            self.take_answer()


def silent_consumer(connect: Callable[..., RawClient], queue: str) -> RawClient:
    """A consumer without prefetch that never reads."""
    raw = connect()
    raw.declare(queue)
    raw.send(m.Consume(0, 1, "silent", queue, False, False, {}))
    return raw


@pytest.mark.slow
@pytest.mark.parametrize("size", [10_240, MB])
def test_a_consumer_that_never_reads_while_1_gb_is_published(
    serve: Callable[..., ServedBroker], client: Callable[..., RawClient], size: int
) -> None:
    broker = serve()
    silent_consumer(client, "q")
    publisher = Publisher(broker, client(), "q")
    publisher.publish(16 * size, size, 1)  # what any broker that is used needs
    idle = resident_bytes(broker)
    publisher.publish(1024 * MB, size, max(1, 8 * MB // size))
    # 107 to 134 are expected, 48 of them in the cache of payloads, with bodies that LZ4 makes 70 times smaller
    assert publisher.highest_bytes - idle < 152 * MB


# ---------------------------------------------------------------- the limit
def transient(queue: str) -> m.DeclareQueue:
    """A queue whose messages are in memory only."""
    return m.DeclareQueue(0, queue, False, False, False, {}, False)


def fill(publisher: Publisher, observer: RawClient) -> None:
    """Publish 1 MB each until the broker takes no more."""
    for _ in range(1000):
        publisher.send(MB)
        while not select.select([publisher.raw.sock], [], [], 0.5)[0]:
            if is_full(observer):
                return
        publisher.take_answer()
    raise AssertionError("the broker took 1 GB")


def is_full(observer: RawClient) -> bool:
    return bool(observer.call(m.GetStatus(0)).report["memory"]["is_full"])


def test_publishers_wait_at_the_limit_and_others_go_on(
    serve: Callable[..., ServedBroker], client: Callable[..., RawClient]
) -> None:
    broker = serve("--memory-limit", "160M")
    raw, observer, worker = client(), client(), client()
    raw.call(transient("q"))
    worker.call(m.Qos(0, 1, 4))
    worker.consume("q")
    publisher = Publisher(broker, raw, "q")
    fill(publisher, observer)
    assert is_full(observer)
    assert resident_bytes(broker) < 200 * MB
    assert "its limit is 160 MB (--memory-limit): publishers wait" in broker.log.read_text()

    observer.declare("other")  # definitions go on
    for message in (publish("other", 1), q.Send(0, 2, "", "other", [(b"sent", {}, 0, 0, -1)], 1)):
        sender = client()
        rid = sender.send(message)
        sender.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sender.answer(rid)
        assert isinstance(sender.call(q.Ping(0)), m.Ok)  # its other calls go on

    rid = worker.send(publish("other", 1))  # settlements are not behind it
    settled = 0
    while is_full(observer):
        deliveries = worker.wait_deliveries(1)
        settled += len(deliveries)
        leases, done = [d.lease for d in deliveries], TaskReport(TaskState.SUCCEEDED)
        reports = m.ReportTasks(settled, [(m.Outcome.ACK, *lease, done) for lease in leases])
        worker.send(reports if settled > 1 else m.Settle(settled, m.Outcome.ACK, 1, leases))
        worker.deliveries.clear()
    assert settled > 4
    assert isinstance(worker.answer(rid), m.PublishConfirm)
    publisher.take_answer()
    wait_until(lambda: "publishers continue" in broker.log.read_text(), 60, "the log says so")


# ---------------------------------------------------------------- clients that stop in the middle
def send_half(raw: RawClient, size: int) -> None:
    """Send half of a publish of this size, as much of it as the broker reads."""
    data = frame(publish("q", 1, bytes(size)))
    raw.sock.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        raw.sock.sendall(data[: len(data) // 2])
    raw.sock.settimeout(20)


@pytest.mark.slow
def test_many_halves_of_messages(serve: Callable[..., ServedBroker], client: Callable[..., RawClient]) -> None:
    broker = serve("--memory-limit", "200M")
    honest = client()
    honest.declare("q")
    before = resident_bytes(broker)
    halves = [client() for _ in range(12)]
    for half in halves:
        send_half(half, 40 * MB)
    assert resident_bytes(broker) - before < 90 * MB  # a quarter of the limit, and what was on its way
    assert isinstance(honest.publish("q", 1, b"small"), m.PublishConfirm)
    assert isinstance(
        honest.publish("q", 2, bytes(10 * MB)), m.PublishConfirm
    )  # it waits until the silent ones are gone
    last = halves[0].last_word()
    assert last is not None
    assert "of a message arrived and then nothing for 10 s" in last.text


@pytest.mark.slow
def test_a_hundred_consumers_that_never_read(
    serve: Callable[..., ServedBroker], client: Callable[..., RawClient]
) -> None:
    broker = serve("--no-sync")
    raw = client()
    raw.declare("q")
    publisher = Publisher(broker, raw, "q")
    publisher.publish(16 * MB // 10, 10_240, 50)
    for _ in range(100):
        silent_consumer(client, "q")
    idle = resident_bytes(broker)
    publisher.publish(150 * MB, 10_240, 200)
    assert publisher.highest_bytes - idle < 170 * MB
