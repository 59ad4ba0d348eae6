"""The brokers of a run: ours, RabbitMQ and Redis, all up at the same time and stopped in all cases."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import servers
from .processes import BenchError, end, is_running
from .results import Results
from .targets import ALWAYS, OURS, QUORUM, RABBITMQ, REDIS, TITLES


@dataclass(frozen=True)
class Peer:
    """A broker a client can be pointed at (travels to the client processes)."""

    name: str
    url: str
    version: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    results_url: str = ""
    """Where a Celery app that uses this broker keeps its results: Redis, for the peers."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of the queues that a measurement declares."""

    @property
    def title(self) -> str:
        return TITLES[self.name]


SETTINGS = {
    OURS: (
        "embedded broker on a local folder (`opendata:///…`), which the first client starts; all settings have their "
        "defaults. A publish returns when its commit is durable (the write-ahead log is written and fsynced). Acks are "
        "committed, too."
    ),
    RABBITMQ: (
        "classic queue, `durable`; messages with `delivery_mode=2`; `confirm_publish: True`, so each publish waits "
        "for the confirm, which RabbitMQ sends after its own write and fsync; no plugins; everything else has its "
        "default."
    ),
    QUORUM: "the same node; `x-queue-type: quorum`, which makes a queue a Raft log, here of one member.",
    REDIS: (
        "`appendonly yes`, `appendfsync everysec`, `save ''`; Kombu's transport options have their defaults. A power "
        "loss loses the answered publishes of the last second, so this durability is weaker than that of the other two."
    ),
    ALWAYS: "a second server with `appendfsync always`, which syncs each command before its answer.",
}


def embedded(folder: Path) -> Peer:
    """Our broker on this folder; the first client starts it."""
    return Peer(OURS, f"opendata://{folder.absolute()}", version=_own_version())


@contextmanager
def running(names: Collection[str], folder: Path, results: Results) -> Iterator[list[Peer]]:
    """Starts the brokers named; notes in `results` those this machine does not have and those that did not start."""
    with ExitStack() as stack:
        peers = []
        if OURS in names:
            peers.append(stack.enter_context(our_broker(folder / "ours")))
        for name in _SERVERS if names else ():
            if name not in names:
                results.skipped[TITLES[name]] = "left out on request"
                continue
            try:
                started = _started(name, folder / name, stack)
            except BenchError as error:
                results.failures[f"start of {TITLES[name]}"] = str(error)
                continue
            if isinstance(started, str):
                results.skipped[TITLES[name]] = started
                continue
            peers.append(started)
            if name == RABBITMQ and QUORUM in names:
                peers.append(replace(started, name=QUORUM, arguments={"x-queue-type": "quorum"}))
        redis = next((peer.url for peer in peers if peer.name == REDIS), "")
        yield [peer if peer.name == OURS else replace(peer, results_url=redis) for peer in peers]


#: those with a server of their own
_SERVERS = (RABBITMQ, REDIS, ALWAYS)


def _started(name: str, folder: Path, stack: ExitStack) -> Peer | str:
    """A broker that runs until the stack ends, or why this machine can't have it."""
    find = servers.find_rabbitmq if name == RABBITMQ else servers.find_redis
    program, package = find(), "rabbitmq" if name == RABBITMQ else "redis"
    if program is None:
        return f"skipped: no {package}-server on this machine (Debian: apt install {package}-server)"
    if package == "redis" and find_spec("redis") is None:
        return "skipped: Kombu's Redis transport needs the Python package (pip install redis)"
    folder.mkdir()
    if name == RABBITMQ:
        url, version = stack.enter_context(servers.rabbitmq(program, folder))
        return Peer(name, url, version, {"confirm_publish": True})
    url, version = stack.enter_context(servers.redis(program, folder, sync="always" if name == ALWAYS else "everysec"))
    return Peer(name, url, version)


@contextmanager
def our_broker(folder: Path) -> Iterator[Peer]:
    """Our broker on a new folder; ends whatever broker runs there on the way out."""
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield embedded(folder / "store")
    finally:
        stop(folder / "store")


def broker_pid(store: Path) -> int | None:
    """The process id of the embedded broker of this folder, or None when none runs."""
    try:
        pid = int((store / "broker.pid").read_text(encoding="ascii").split()[0])
    except (FileNotFoundError, IndexError):
        return None
    return pid if is_running(pid) else None


def stop(store: Path) -> None:
    """Stops the embedded broker of this folder, if one runs."""
    pid = broker_pid(store)
    if pid is not None:
        end(pid)


def _own_version() -> str:
    try:
        return version("kombu-opendata")
    except PackageNotFoundError:
        return "source tree"
