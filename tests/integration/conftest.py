"""Ways to reach a broker, connections that are closed at the end, and a broker that a module's tests share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.broker import memory
from kombu_opendata.broker.access.secret_hashes import hash_secret

from ..support.broker import EmbeddedBroker
from ..support.certificates import Authority
from ..support.kombu_client import connected
from ..support.processes import children
from ..support.served import ServedBroker
from ..support.users import user_table, write_users

USER, SECRET = "worker", "s3cret:/@"


class Reach(NamedTuple):
    """How to connect to a broker."""

    kind: str
    url: str
    options: dict[str, Any]


def _memory(_folder: Path) -> Iterator[Reach]:
    name = f"conformance-{uuid.uuid4().hex}"
    yield Reach("memory", f"opendata+memory://{name}", {})
    memory.stop(name)


def _unix(folder: Path) -> Iterator[Reach]:
    yield Reach("unix", f"opendata://{folder}", {})


def _tls(folder: Path) -> Iterator[Reach]:
    authority = Authority(folder)
    chain, key, _both = authority.issue("server", "localhost")
    users = folder / "users"
    write_users(users, user_table(USER, hashed=hash_secret(SECRET), roles=("operator",)))
    options = ["--store", f"file://{folder}/store", "--listen", "tcp:127.0.0.1:0", "--users", str(users)]
    with children() as started:
        broker = ServedBroker(folder, *options, "--tls-cert", str(chain), "--tls-key", str(key))
        started.add(broker)
        url = f"opendatas://{USER}:s3cret%3A%2F%40@localhost:{broker.port}"
        yield Reach("tls", url, {"ssl": {"ca_certs": str(authority.path)}})
        assert broker.terminate() == 0, broker.log.read_text()


@pytest.fixture(scope="module", params=[_memory, _unix, _tls], ids=["memory", "unix", "tls"])
def reach(request: pytest.FixtureRequest, module_store_folder: Path) -> Iterator[Reach]:
    """Each way to reach a broker."""
    folder = module_store_folder / request.param.__name__.strip("_")
    folder.mkdir()
    yield from request.param(folder)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Whatever must be closed at the end of a test."""
    with ExitStack() as entered:
        yield entered


@pytest.fixture
def connect(stack: ExitStack) -> Callable[..., Any]:
    """Opens Kombu connections: ``connect(url, **transport_options)``."""

    def open_one(url: str, **options: Any) -> Any:
        return stack.enter_context(connected(url, **options))

    return open_one


@pytest.fixture
def broker(store_folder: Path) -> EmbeddedBroker:
    """The embedded broker of the test's folder."""
    return EmbeddedBroker(store_folder)


# ------------------------------------------------------------------ one broker for a module; some have others
@pytest.fixture(scope="module")
def connection(module_store_folder: Path) -> Iterator[Any]:
    """A connection to the broker that a module's tests share."""
    with connected(f"opendata://{module_store_folder}") as opened:
        yield opened


@pytest.fixture
def channel(connection: Any) -> Iterator[Any]:
    """A channel of that connection."""
    with connection.channel() as opened:
        yield opened


@pytest.fixture
def common_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The broker that a module's tests share, without queues; a test that looks at its store has another broker."""
    if "store_folder" in request.fixturenames:
        yield f"opendata://{request.getfixturevalue('store_folder')}"
        return
    url = f"opendata://{request.getfixturevalue('module_store_folder')}"
    with QueueClient(url, start_timeout=60, connect_timeout=60) as client:
        yield url
        for queue in client.list_queues():
            client.delete_queue(queue.name)
        for exchange in client.list_exchanges():
            if not exchange.name.startswith("amq."):
                client.delete_exchange(exchange.name)


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"q-{uuid.uuid4().hex[:8]}"
