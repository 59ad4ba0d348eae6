"""RabbitMQ and Redis from the distribution's packages, each on ports and in a folder of its own."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .kombu_api import Connection
from .processes import BenchError, server, wait_until

RABBITMQ_PATHS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/rabbitmq/sbin/rabbitmq-server")
"""Looked at before ``PATH``: Debian's wrapper there changes the user and takes no folders of ours."""


def find_rabbitmq() -> str | None:
    """The server's own start script, or None."""
    if shutil.which("erl") is None or shutil.which("epmd") is None:
        return None
    return next((path for path in RABBITMQ_PATHS if os.access(path, os.X_OK)), None)


def find_redis() -> str | None:
    """The Redis server's program, or None."""
    return shutil.which("redis-server")


@contextmanager
def rabbitmq(program: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Runs a RabbitMQ node without plugins; gives its URL and version."""
    port, epmd_port, dist_port = free_ports(3)
    env = _rabbitmq_settings(folder, port, epmd_port, dist_port)
    url = f"amqp://guest:guest@127.0.0.1:{port}//"
    epmd = [shutil.which("epmd") or "epmd", "-port", str(epmd_port), "-address", "127.0.0.1"]
    log = folder / "server.log"
    with server(epmd, log=str(folder / "epmd.log")), server([program], log=str(log), env=env) as process:
        properties = _wait_for_answer(url, process, log)
        yield url, str(properties.get("version", "?"))


def _rabbitmq_settings(folder: Path, port: int, epmd_port: int, dist_port: int) -> dict[str, str]:
    for name in ("home", "mnesia", "log"):
        (folder / name).mkdir()
    (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n", encoding="ascii")
    (folder / "plugins").write_text("[].\n", encoding="ascii")
    (folder / "env.conf").touch()
    return {
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


@contextmanager
def redis(program: str, folder: Path, *, sync: str) -> Iterator[tuple[str, str]]:
    """Runs a Redis server with an append-only file, synced as ``appendfsync`` says; gives its URL and version."""
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}/0"
    log = folder / "server.log"
    command = [
        *(program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--daemonize", "no"),
        *("--save", "", "--appendonly", "yes", "--appendfsync", sync),
    ]
    with server(command, log=str(log)) as process:
        _wait_for_answer(url, process, log)
        with Connection(url) as connection:
            version = connection.default_channel.client.info("server")["redis_version"]
        yield url, str(version)


def _wait_for_answer(url: str, process: Any, log: Path) -> dict[str, Any]:
    """Waits until the server accepts a client; returns what it says about itself (AMQP only)."""
    answer: dict[str, Any] = {}

    def ready() -> bool:
        if process.poll() is not None:
            tail = log.read_text(encoding="utf-8", errors="replace")[-800:]
            raise BenchError(f"{process.args[0]} exited with {process.returncode} while starting:\n{tail}")
        try:
            with Connection(url, connect_timeout=2) as connection:
                connection.connect()
                _ = connection.default_channel
                answer.update(getattr(connection.connection, "server_properties", {}))
        except connection.connection_errors + connection.channel_errors:
            return False
        return True

    wait_until(ready, f"an answer of {process.args[0]}", seconds=90.0, poll_seconds=0.2)
    return answer


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
