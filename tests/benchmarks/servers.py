"""RabbitMQ and Redis from the distribution's packages, each on its own ports and folder."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .kombu_api import Connection
from .processes import BenchError, server, wait_until

RABBITMQ_PATHS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/rabbitmq/sbin/rabbitmq-server")
"""Tried in place of ``PATH``: Debian's wrapper there changes the user and takes no folders of ours."""


class Started(NamedTuple):
    """A server that runs; `pid` is its first process, which started the others."""

    url: str
    version: str
    pid: int


def find_rabbitmq() -> str | None:
    """Return the server's own start script."""
    if shutil.which("erl") is None or shutil.which("epmd") is None:
        return None
    return next((path for path in RABBITMQ_PATHS if os.access(path, os.X_OK)), None)


def find_redis() -> str | None:
    return shutil.which("redis-server")


@contextmanager
def rabbitmq(program: str, folder: Path, port: int = 0) -> Iterator[Started]:
    """Run a RabbitMQ node without plugins, on this port or a free one."""
    free_port, epmd_port, dist_port = free_ports(3)
    port = port or free_port
    for name in ("home", "mnesia", "log"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n", encoding="ascii")
    (folder / "plugins").write_text("[].\n", encoding="ascii")
    (folder / "env.conf").touch()
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": str(folder / "home"),
        "ERL_EPMD_PORT": str(epmd_port),
        "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_BASE": str(folder),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    epmd = [shutil.which("epmd") or "epmd", "-port", str(epmd_port), "-address", "127.0.0.1"]
    url = f"amqp://guest:guest@127.0.0.1:{port}//"
    with (
        server(epmd, log=str(folder / "epmd.log")),
        _answering([program], folder, url, _amqp_version, env) as started,
    ):
        yield started


@contextmanager
def redis(program: str, folder: Path, port: int = 0, *, sync: str) -> Iterator[Started]:
    """Run a Redis server with an append-only file, synced by ``appendfsync``."""
    port = port or free_ports(1)[0]
    command = [
        *(program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--daemonize", "no"),
        *("--save", "", "--appendonly", "yes", "--appendfsync", sync),
    ]
    with _answering(command, folder, f"redis://127.0.0.1:{port}/0", _redis_version) as started:
        yield started


def _amqp_version(connection: Any) -> object:
    return connection.connection.server_properties.get("version", "?")


def _redis_version(connection: Any) -> object:
    return connection.default_channel.client.info("server")["redis_version"]


@contextmanager
def _answering(
    command: list[str], folder: Path, url: str, version: Callable[[Any], object], env: dict[str, str] | None = None
) -> Iterator[Started]:
    """Run a server that accepts Kombu's clients."""
    log, versions = folder / "server.log", list[str]()

    def is_ready() -> bool:
        try:
            with Connection(url, connect_timeout=2) as connection:
                connection.connect()
                _ = connection.default_channel
                versions.append(str(version(connection)))
        except connection.connection_errors + connection.channel_errors:
            return False
        return True

    with server(command, log=str(log), env=env) as process:
        _wait_for_answer(process, log, is_ready)
        yield Started(url, versions[-1], process.pid)


def _wait_for_answer(process: Any, log: Path, is_ready: Callable[[], bool]) -> None:
    def check() -> bool:
        if process.poll() is not None:
            raise BenchError(f"{process.args[0]} exited with {process.returncode} while starting:\n{_tail(log)}")
        return is_ready()

    wait_until(check, f"an answer of {process.args[0]}", seconds=90.0, poll_seconds=0.2)


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-800:]


def free_ports(count: int) -> list[int]:
    """Return ports without a listener."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(listener.getsockname()[1]) for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()
