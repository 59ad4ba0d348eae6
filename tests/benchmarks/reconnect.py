"""The time until 500 clients, each with a consumer, are served again by the broker's successor (ours only).

The broker is killed. It is started again at the same place, or its standby takes over. Each client has a connection, a
queue and a consumer. It is served when it has published a message and got it.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from argon2 import PasswordHasher

from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.errors import OpenDataError
from kombu_opendata.protocol.messages import Consume, DeclareQueue, Outcome, Publish
from kombu_opendata.url import parse

from ..support.certificates import Authority
from ..support.processes import children
from ..support.served import ServedBroker
from ..support.users import user_table, write_users
from . import servers
from .processes import Waiter, run_together
from .results import Results
from .targets import OURS
from .workloads import Sizes

CLIENTS = 500
_PROCESSES = 4
_SECONDS = 60.0


class Case(NamedTuple):
    """One row: the clients' connections, and the broker that serves them again."""

    row: str
    tls: bool = False
    users: int = 0
    standby: bool = False


CASES = (
    Case("reconnect.plain"),
    Case("reconnect.tls", tls=True, users=1),
    Case("reconnect.users", tls=True, users=50),
    Case("reconnect.standby", tls=True, users=1, standby=True),
)


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Add a sample of each row for each restart."""
    for number in range(sizes.restarts):
        for case in CASES:
            place = folder / f"{case.row}-{number}"
            place.mkdir()
            results.add(case.row, OURS, _round(case, place))
            step(f"{case.row}, {number + 1}")


def _round(case: Case, folder: Path) -> float:
    ports, options = servers.free_ports(2 if case.standby else 1), _options(case, folder)
    with children() as started:

        def start(port: int) -> ServedBroker:
            place = folder / f"{len(list(folder.iterdir()))}"
            place.mkdir()
            listen = ("--listen", f"tcp:127.0.0.1:{port}", "--store", f"file://{folder}/store")
            broker = ServedBroker(place, *listen, *options)
            started.add(broker)
            return broker

        active = start(ports[0])
        if case.standby:
            start(ports[1])
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        urls = [_url(case, hosts, number) for number in range(CLIENTS)]
        ready = [folder / f"ready{number}" for number in range(_PROCESSES)]
        killing = threading.Thread(target=_kill_when, args=(ready, active, None if case.standby else start, ports[0]))
        killing.start()
        arguments = [(urls[n::_PROCESSES], str(ready[n]), str(folder)) for n in range(_PROCESSES)]
        served = run_together(clients, arguments, deadline_seconds=3 * _SECONDS)
        killing.join()
        return float(max(served)) - float((folder / "killed").read_text())


def _options(case: Case, folder: Path) -> list[str]:
    options = ["--standby"] * case.standby
    if case.tls:
        issued = Authority(folder).issue("broker", "127.0.0.1")
        options += [f"--tls-cert={issued.chain}", f"--tls-key={issued.key}"]
    if case.users:
        hasher = PasswordHasher()  # as `opendata-queue user add` hashes
        tables = [user_table(f"user{n}", hashed=hasher.hash(f"secret{n}")) for n in range(case.users)]
        options.append(f"--users={write_users(folder / 'users.toml', *tables)}")
    return options


def _url(case: Case, hosts: str, number: int) -> str:
    user = number % max(case.users, 1)
    login = f"user{user}:secret{user}@" if case.users else ""
    return f"opendata{'s' if case.tls else ''}://{login}{hosts}"


def _kill_when(ready: list[Path], active: ServedBroker, start: Callable[[int], ServedBroker] | None, port: int) -> None:
    until = time.monotonic() + _SECONDS
    while not all(path.exists() for path in ready):
        if time.monotonic() > until:
            return
        time.sleep(0.05)
    time.sleep(1.0)  # the clients wait in their consumers
    (ready[0].parent / "killed").write_text(f"{time.monotonic()}")
    os.kill(active.pid, signal.SIGKILL)
    active.process.wait()
    if start is not None:
        start(port)


# ------------------------------------------------------------ the clients
def clients(barrier: Waiter, urls: list[str], ready: str, folder: str) -> float:
    """Connect, wait until the broker was killed, and be served again; return the time of the last one."""
    logging.getLogger("kombu_opendata").setLevel(logging.ERROR)  # each logs the loss of its connection
    tls = {"ca_certs": f"{folder}/ca.pem"} if urls[0].startswith("opendatas") else None
    options = Options(tls=tls, connect_timeout=5.0, reconnect_timeout=_SECONDS, heartbeat=60.0)
    with ExitStack() as stack:
        connections = []
        for number, url in enumerate(urls):
            connection = BrokerConnection(parse(url), options)
            stack.callback(connection.abandon)
            connections.append((connection, f"{os.getpid()}-{number}"))
        _all_at_once(_begin, connections)
        Path(ready).touch()
        return max(_all_at_once(_be_served_again, connections))


def _begin(connection: BrokerConnection, queue: str) -> float:
    until = time.monotonic() + _SECONDS
    while True:
        try:
            connection.connect()
            break
        except OpenDataError:
            if time.monotonic() > until:
                raise
            time.sleep(random.uniform(0.2, 1.0))
    connection.call(DeclareQueue(0, queue, True, False, False, {}, False))
    connection.consume(Consume(0, 1, "tag", queue, False, False, {}))
    return 0.0


def _be_served_again(connection: BrokerConnection, queue: str) -> float:
    first = connection.link.current
    while connection.link.current is first:
        try:
            connection.drain(0.5)  # it notices the break and resumes
        except TimeoutError:
            continue
    connection.io.publish(Publish(0, 0, "", queue, b"x", {}, 0, 1))
    while not connection.events:
        connection.drain(_SECONDS)
    delivery: Any = connection.events.popleft()
    connection.settle(1, Outcome.ACK, [delivery.lease])
    return time.monotonic()


def _all_at_once(function: Callable[..., float], connections: list[tuple[BrokerConnection, str]]) -> list[float]:
    with ThreadPoolExecutor(len(connections)) as pool:
        return list(pool.map(lambda connection: function(*connection), connections))
