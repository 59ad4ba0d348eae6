"""Brokers of one store that may be each other's standby: ``opendata-queue broker --standby`` with the same command."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path

from kombu_opendata.client.session.open_session import shake_hands
from kombu_opendata.errors import ConnectionLost, NotActive, OpenDataError
from kombu_opendata.protocol.messages import Hello

from .processes import Children, tail, wait_until
from .served import ServedBroker

CONNECTED = "a standby is connected"
GONE = "a standby has disconnected"
ACTIVE = "this broker is the active one now"


class Pair:
    """The brokers of one store, each in a folder of its own for its log.

    Attributes:
        brokers: the running ones, and those that ended, in the order of their starts.
    """

    def __init__(self, store: str, folder: Path, started: Children, *options: str) -> None:
        self.store = store
        self._folder = folder
        self.started = started
        self.options = options
        self.brokers: list[ServedBroker] = []

    def start(self, *options: str, port: int = 0, clock_ahead: float = 0.0, standby: bool = True) -> ServedBroker:
        """Start one more broker; it listens, and may be active or not."""
        folder = self._folder / f"broker{len(self.brokers)}"
        folder.mkdir()
        listen = ("--store", self.store, "--listen", f"tcp:127.0.0.1:{port}", *(["--standby"] if standby else []))
        broker = ServedBroker(folder, *listen, *self.options, *options, clock_ahead=clock_ahead)
        self.started.add(broker)
        self.brokers.append(broker)
        return broker

    def wait_active(self, broker: ServedBroker, seconds: float = 60) -> float:
        """Wait until a broker serves; returns when that was seen, by the monotonic clock."""

        def serves() -> bool:
            broker.check()
            return greet(broker.port) is None

        wait_until(serves, seconds, lambda: "\n".join(tail(each.log) for each in self.brokers))
        return time.monotonic()

    def wait_connected(self, active: ServedBroker, seconds: float = 60) -> None:
        """Wait until a standby is connected to the active broker."""
        wait_until(lambda: is_followed(active), seconds, lambda: tail(active.log))


def is_followed(active: ServedBroker) -> bool:
    """Whether the last line of its log about a standby says that one is connected."""
    found = re.findall(f"{CONNECTED}|{GONE}", active.log.read_text())
    return bool(found) and found[-1] == CONNECTED


def url(broker: ServedBroker) -> str:
    return f"opendata://127.0.0.1:{broker.port}"


def greet(port: int) -> OpenDataError | None:
    """Why a broker does not serve; None if it does."""
    hello = Hello(1, os.urandom(16), "greet")
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as sock:
            shake_hands(sock, hello, 10)
    except OSError as exc:
        return ConnectionLost(str(exc))
    except (NotActive, ConnectionLost) as exc:
        return exc
    return None


def took_over(broker: ServedBroker) -> bool:
    """Whether its log says that it became the active one."""
    return re.search(ACTIVE, broker.log.read_text()) is not None
