"""What the demo does and measures: send, kill the broker half way, wait, count."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from demo_processes import Broker, DemoError, Worker
from demo_tasks import LINE_BYTES, app, note

LOOK_SECONDS = 0.05


class Ledger:
    """The file to which each task appended its number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> int:
        return self.path.stat().st_size // LINE_BYTES

    def runs(self) -> Counter[int]:
        """How many times each number ran."""
        return Counter(int(line) for line in self.path.read_text().split())


class Sender(threading.Thread):
    """Calls ``note.delay`` once for each task. Each call returns when the task is on disk."""

    def __init__(self, ledger: Ledger, total: int) -> None:
        super().__init__(name="sender", daemon=True)
        self.sent = 0
        self.seconds = 0.0
        self.error: Exception | None = None
        self._ledger = str(ledger.path)
        self._total = total
        self._stop_asked = threading.Event()

    def run(self) -> None:
        began = time.monotonic()
        try:
            while self.sent < self._total and not self._stop_asked.is_set():
                note.delay(self._ledger, self.sent)
                self.sent += 1
        except Exception as exc:  # the main thread reports it
            self.error = exc
        self.seconds = time.monotonic() - began

    def check(self) -> None:
        if self.error is not None:
            raise DemoError(f"sending task {self.sent} failed: {self.error}") from self.error

    def stop(self) -> None:
        self._stop_asked.set()
        if self.is_alive():
            self.join(10)


@dataclass
class Result:
    """The outcome."""

    total: int
    killed_pid: int = 0
    killed_after: int = 0
    next_pid: int = 0
    gap_seconds: float = 0.0
    send_seconds: float = 0.0
    run_seconds: float = 0.0
    waiting: int = 0
    lost: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.lost and not self.repeated and not self.waiting


def send_and_watch(
    sender: Sender,
    ledger: Ledger,
    worker: Worker,
    broker: Broker,
    result: Result,
    *,
    deadline_seconds: float,
    show: Callable[[int, int], None],
    tell: Callable[[str], None],
) -> None:
    """Send all tasks, kill the broker when half of them are sent, and return when all ran or the deadline is over.

    ``show(sent, done)`` is called about twenty times a second, ``tell(text)`` at each event.
    """
    began = time.monotonic()
    killed_at = 0.0
    sender.start()
    while (done := ledger.lines()) < result.total or not result.next_pid:
        now = time.monotonic()
        sender.check()
        worker.check()
        show(sender.sent, done)
        if now - began > deadline_seconds:
            tell(f"gave up after {deadline_seconds:g} s: {sender.sent:,} sent, {done:,} done")
            break
        if not killed_at and sender.sent >= result.total // 2:
            result.killed_after, killed_at = sender.sent, now
            result.killed_pid = broker.kill()
            tell(f"broker {result.killed_pid} killed with -9 after {sender.sent:,} tasks sent, {done:,} done")
        elif killed_at and not result.next_pid and (pid := broker.pid()) not in (None, result.killed_pid):
            assert pid is not None
            result.next_pid, result.gap_seconds = pid, now - killed_at
            tell(f"broker {pid} took over {result.gap_seconds:.1f} s later; the work goes on")
        time.sleep(LOOK_SECONDS)
    result.run_seconds = time.monotonic() - began
    show(sender.sent, ledger.lines())
    sender.stop()
    sender.check()
    result.send_seconds = sender.seconds


def count(ledger: Ledger, result: Result) -> None:
    """Compare what ran with what was sent. The worker has ended, so what it did not finish is back in the queue."""
    runs = ledger.runs()
    result.lost = [number for number in range(result.total) if not runs[number]]
    result.repeated = [number for number, times in runs.items() if times > 1]
    with app.connection_for_read() as connection:
        queue = connection.default_channel.queue_declare(app.conf.task_default_queue, passive=True)
        result.waiting = queue.message_count
