"""The brokers of a run: ours and its peers, all up at the same time and stopped in all cases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import servers
from .processes import BenchError, end, is_running, server, wait_until
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
    """The result backend of a Celery app that uses this broker: Redis, for the peers."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of the queues that a measurement declares."""
    pid: int = 0
    """The server's first process; 0 for ours, which a client starts: see `server_pid`."""

    @property
    def title(self) -> str:
        return TITLES[self.name]


def embedded(folder: Path) -> Peer:
    """Our broker on this folder; the first client starts it."""
    return Peer(OURS, f"opendata://{folder.absolute()}", version=_own_version())


@contextmanager
def running(names: Collection[str], folder: Path, results: Results) -> Iterator[list[Peer]]:
    """Start the named brokers; note in `results` those that are missing or did not start."""
    with ExitStack() as stack:
        peers = []
        if OURS in names:
            peers.append(stack.enter_context(our_broker(folder / "ours")))
        for name in _SERVERS if names else ():
            if name not in names:
                results.skipped[TITLES[name]] = "left out on request"
                continue
            try:
                found = started(name, folder / name, stack)
            except BenchError as error:
                results.failures[f"start of {TITLES[name]}"] = str(error)
                continue
            if isinstance(found, str):
                results.skipped[TITLES[name]] = found
                continue
            peers.append(found)
            if name == RABBITMQ and QUORUM in names:
                peers.append(replace(found, name=QUORUM, arguments={"x-queue-type": "quorum"}))
        redis = next((peer.url for peer in peers if peer.name == REDIS), "")
        yield [peer if peer.name == OURS else replace(peer, results_url=redis) for peer in peers]


@dataclass(frozen=True)
class _Kind:
    """The program of a broker's server, and the Python packages of its clients."""

    package: str
    find: Callable[[], str | None]
    run: Callable[..., AbstractContextManager[servers.Started]]
    modules: tuple[str, ...] = ()
    """The imports of Kombu's transport."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the transport."""


#: those with a server of their own
_SERVERS = {
    RABBITMQ: _Kind("rabbitmq-server", servers.find_rabbitmq, servers.rabbitmq, options={"confirm_publish": True}),
    REDIS: _Kind("redis-server", servers.find_redis, partial(servers.redis, sync="everysec"), ("redis",)),
    ALWAYS: _Kind("redis-server", servers.find_redis, partial(servers.redis, sync="always"), ("redis",)),
}


def started(name: str, folder: Path, stack: ExitStack, port: int = 0) -> Peer | str:
    """A broker that runs until the stack ends, or why this machine can't have it.

    Raises:
        BenchError: it does not start.
    """
    kind = _SERVERS[name]
    program = kind.find()
    if program is None:
        return f"skipped: no {kind.package} on this machine (Debian: apt install {kind.package})"
    missing = [module for module in kind.modules if find_spec(module) is None]
    if missing:
        return f"skipped: Kombu's transport needs the Python package {' and '.join(missing)} (`make bench` installs it)"
    folder.mkdir(exist_ok=True)
    one = stack.enter_context(kind.run(program, folder, port))
    return Peer(name, one.url, one.version, dict(kind.options), pid=one.pid)


@contextmanager
def our_broker(folder: Path) -> Iterator[Peer]:
    """Our broker on a new folder; ends whatever broker runs there on the way out."""
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield embedded(folder / "store")
    finally:
        stop(folder / "store")


def server_pid(peer: Peer) -> int:
    """The first process of a broker, whose tree is all of it.

    Raises:
        BenchError: ours does not run.
    """
    pid = peer.pid or broker_pid(Path(peer.url.removeprefix("opendata://")))
    if pid is None:
        raise BenchError(f"no broker runs on {peer.url}")
    return pid


@contextmanager
def broker_with(folder: Path, *options: str, before: str = "") -> Iterator[Peer]:
    """Our broker on a new folder, with these options of the command line, after the statements `before`."""
    store = folder / "store"
    store.mkdir(parents=True, mode=0o700)
    program = [sys.executable, "-c", f"{before}from kombu_opendata.cli import main; main()", "broker"]
    listening = store / "broker.sock"
    command = [*program, "--store", f"file://{store}", "--listen", f"unix:{listening}", *options]
    with server(command, log=str(folder / "log")) as process:
        wait_until(lambda: listening.exists() or process.poll() is not None, "a broker", seconds=30.0)
        if process.poll() is not None:  # else the first client would start one without these options
            raise BenchError(f"the broker has ended with exit code {process.returncode}; see its log with --keep")
        yield embedded(store)


def broker_pid(store: Path) -> int | None:
    """The process id of the embedded broker of this folder, or None when none runs."""
    try:
        pid = int((store / "broker.pid").read_text(encoding="ascii").split()[0])
    except (FileNotFoundError, IndexError):
        return None
    return pid if is_running(pid) else None


def stop(store: Path) -> None:
    """Stop the embedded broker of this folder, if one runs."""
    pid = broker_pid(store)
    if pid is not None:
        end(pid)


def _own_version() -> str:
    try:
        return version("kombu-opendata")
    except PackageNotFoundError:
        return "source tree"
