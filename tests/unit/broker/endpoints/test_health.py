"""What is said about a broker's health."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from kombu_opendata.broker.endpoints.endpoints import Endpoints
from kombu_opendata.broker.endpoints.health import Health
from kombu_opendata.broker.process.server import Server
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.broker.wire.standby_connections import Gate
from kombu_opendata.configuration.addresses import Listen
from tests.support.clock import ManualClock


class Engine:
    stalled_seconds = 0.0


class Instance:
    def __init__(self) -> None:
        self.engine = Engine()


def test_the_states_of_a_standby_that_takes_over_and_ends() -> None:
    gate = Gate()
    health = Health(gate, {}, ManualClock())
    told: list[str] = []
    health.watchers.append(lambda: told.append(health.state))
    gate.hold()
    assert health.fault == "the broker is starting"
    gate.send_away()
    assert health.fault == "another broker is active: where is not known"
    gate.hold()
    gate.open()
    assert health.fault == ""
    health.stop()
    health.stop()
    assert told == ["starting", "standby", "starting", "active", "stopping"]
    gate.open()
    assert health.state == "stopping"


def test_a_store_that_stalls_and_recovers() -> None:
    clock, instances = ManualClock(), {"a": Instance(), "b": Instance()}
    health = Health(Gate(), cast(Any, instances), clock)
    told: list[str] = []
    health.watchers.append(lambda: told.append(health.fault))
    health.tick()
    instances["b"].engine.stalled_seconds = 6.0
    stalled_at = clock.now_ms() - 6000
    health.tick()
    clock.advance(1500)
    instances["b"].engine.stalled_seconds = 7.4
    health.tick()
    assert health.stalled_since_ms == {"b": stalled_at}, "the beginning does not move"
    assert health.report()["stalled_seconds"] == {"b": 7.5}
    assert not health.report()["ready"]
    instances["b"].engine.stalled_seconds = 0.0
    health.tick()
    assert len(told) == 2
    assert told[0].startswith("the store of instance b has taken no writes since ")
    assert told[1] == ""


def test_a_loop_that_hangs_is_neither_healthy_nor_ready() -> None:
    hung = threading.Event()
    gates: list[Gate] = []

    def probe(served: Endpoints, impatient: Endpoints) -> None:
        (gate,) = gates
        try:
            for page in (served.healthz(""), served.readyz("")):
                assert page.status is HTTPStatus.SERVICE_UNAVAILABLE
                assert json.loads(page.body)["reason"] == "the broker did not answer within 0.2 s"
            gate.hold()
            page = served.healthz("")
            assert (page.status, json.loads(page.body)) == (HTTPStatus.OK, {"healthy": True, "state": "starting"})
            assert impatient.healthz("").status is HTTPStatus.SERVICE_UNAVAILABLE
            gate.open()
        finally:
            hung.set()

    async def main() -> None:
        server = Server(BrokerSettings(store=f"memory://{uuid.uuid4().hex}"))
        gates.append(server.front.gate)
        new = partial(
            Endpoints, server.health, server.instances.open, server.measure, Listen(host="127.0.0.1", port=0), 10,
            probe_seconds=0.2,
        )  # fmt: skip
        served, impatient = new(), new(start_seconds=0.0)
        try:
            work = asyncio.get_running_loop().run_in_executor(None, probe, served, impatient)
            assert hung.wait(60)  # as a loop that hangs
            await work
            page = await asyncio.to_thread(served.healthz, "")
            assert (page.status, json.loads(page.body)) == (HTTPStatus.OK, {"healthy": True, "state": "active"})
        finally:
            await asyncio.to_thread(served.stop)
            await asyncio.to_thread(impatient.stop)
            await server.close()

    asyncio.run(main())
