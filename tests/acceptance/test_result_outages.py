"""Results while the broker is away, for longer than calls wait: with every pool, and when the worker ends meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import chord, states

from ..support.ledger import Ledger
from ..support.orchard import SECONDS, Orchard, OrchardWorker, asking
from ..support.processes import Children, children, tail, wait_until
from ..support.served import ServedBroker
from ..support.workers import Worker

pytestmark = pytest.mark.contract(11)

#: pool, and whether its processes or threads store their first results
RESULTS = [
    ("prefork", True),
    ("prefork", False),
    *(pytest.param("threads", is_first, marks=pytest.mark.slow) for is_first in (True, False)),
    *(pytest.param(pool, False, marks=pytest.mark.slow) for pool in ("solo", "gevent", "eventlet")),
]
SIGNALS = [
    *((pool, how) for pool in ("prefork", "threads") for how in (signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL)),
    ("solo", signal.SIGTERM),
    ("gevent", signal.SIGTERM),
]
RECONNECT_SECONDS = 1
LEASE_SECONDS = 5
#: of a broker whose clients do not come back
SHORT_LEASE_SECONDS = 1
#: logged once for each connection over which something waits for longer than its ``reconnect_timeout``
WAITS = "the result of a task waits for it"


class Outage:
    """A broker that is killed and comes back, and workers whose calls wait for it no longer than a second."""

    def __init__(self, folder: Path, started: Children, lease_seconds: int) -> None:
        self._folder = folder
        self._lease_seconds = lease_seconds
        self._started = started
        self._port = 0
        self.start_broker()
        self._port = self.broker.port
        self.url = f"opendata://127.0.0.1:{self._port}"
        self.settings: dict[str, Any] = {
            "broker_transport_options": {"reconnect_timeout": RECONNECT_SECONDS},
            "task_acks_late": True,
            "worker_prefetch_multiplier": 1,
        }
        self.ledger = Ledger(folder / "ledger")
        self.gate = folder / "gate"

    def start_broker(self) -> None:
        store, listen = f"file://{self._folder / 'store'}", f"tcp:127.0.0.1:{self._port}"
        seconds, options = self._lease_seconds, ("--store", store, "--listen", listen)
        self.broker = ServedBroker(self._folder, *options, lease_seconds=seconds, grace_seconds=seconds)
        self._started.add(self.broker)

    def start_worker(self, name: str, pool: str) -> OrchardWorker:
        kept = {"result_backend": self.url, "task_ignore_result": False, **self.settings}
        worker = OrchardWorker(self.url, self._folder, name, "--without-gossip", pool=pool, concurrency=2, **kept)
        self._started.add(worker)
        worker.wait_ready()
        return worker

    def held(self, grove: Orchard, *values: str) -> list[Any]:
        """Tasks that note their beginning and end when the gate opens."""
        return [grove.sig("hold_late_and_return", value, str(self.ledger), str(self.gate)) for value in values]

    def begin(self, worker: Worker, waits: int) -> None:
        """Kill the broker, let the tasks end, and wait until their results wait for the broker."""
        self.broker.kill()
        self.gate.touch()
        wait_until(lambda: worker.log.read_text().count(WAITS) >= waits, SECONDS, lambda: tail(worker.log))


@contextmanager
def outage(folder: Path, pool: str, lease_seconds: int = LEASE_SECONDS) -> Iterator[tuple[Outage, Orchard]]:
    with children() as started:
        away = Outage(folder, started, lease_seconds)
        with asking(away.url, **away.settings) as app:
            yield away, Orchard(app, away.start_worker("first", pool))


@pytest.mark.parametrize(("pool", "is_first"), RESULTS, ids=lambda value: {True: "first", False: "later"}.get(value))
def test_a_chord_completes_once_after_an_outage(tmp_path: Path, pool: str, is_first: bool) -> None:
    slots = 1 if pool == "solo" else 2
    names = ["a", "b"][:slots]
    with outage(tmp_path, pool) as (away, grove):
        if not is_first:  # each process or thread stores one, over a connection of its own
            warm = [task.delay() for task in away.held(grove, *(f"warm {name}" for name in names))]
            away.ledger.wait_for(*(f"warm {name} began" for name in names))
            away.gate.touch()
            assert [task.get(timeout=SECONDS) for task in warm] == [f"warm {name}" for name in names]
            away.gate.unlink()
        result = chord(away.held(grove, *names), grove.sig("put_down", str(away.ledger))).delay()
        away.ledger.wait_for(*(f"{name} began" for name in names))
        away.begin(grove.worker, slots)
        away.start_broker()
        assert result.get(timeout=SECONDS) == names
        assert [part.state for part in result.parent.results] == [states.SUCCESS] * slots
        assert grove.delay("same", "next").get(timeout=SECONDS) == "next", "the worker takes new tasks"
        assert grove.worker.terminate() == 0
    runs = away.ledger.runs()
    assert [runs[f"{name} began"] for name in names] == [1] * slots
    assert runs[f"got {names}"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "how"), SIGNALS)
def test_a_worker_that_ends_during_an_outage_leaves_its_tasks(tmp_path: Path, pool: str, how: signal.Signals) -> None:
    slots = 1 if pool == "solo" else 2
    names = ["a", "b"][:slots]
    with outage(tmp_path, pool, SHORT_LEASE_SECONDS) as (away, grove):
        result = chord(away.held(grove, *names), grove.sig("put_down", str(away.ledger))).delay()
        away.ledger.wait_for(*(f"{name} began" for name in names))
        away.begin(grove.worker, slots)
        grove.worker.process.send_signal(how)
        code = grove.worker.wait(SECONDS)
        assert how == signal.SIGKILL or code == 0 or (how, code) == (signal.SIGQUIT, 1), tail(grove.worker.log)
        away.start_broker()
        assert [part.state for part in result.parent.results] == [states.PENDING] * slots
        second = away.start_worker("second", "prefork")
        assert result.get(timeout=SECONDS) == names
        assert second.terminate() == 0
    runs = away.ledger.runs()
    assert [runs[f"{name} began"] for name in names] == [2] * slots, "their messages returned"
    assert runs[f"got {names}"] == 1
