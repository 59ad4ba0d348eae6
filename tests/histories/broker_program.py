"""The program of a broker: ``opendata-queue broker``, whose sessions may keep what they hold for longer."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from kombu_opendata.broker.process import process
from kombu_opendata.broker.process.start_settings import broker_settings
from kombu_opendata.cli.root import main

from .events import Plain


class BrokerSetup(Plain):
    """How a broker is started.

    Attributes:
        options: of its command line.
        grace_seconds: how long sessions wait for their clients.
        environment: variables for its process.
        library, control: of :mod:`.system_faults`.
        namespace: that of its host; empty for the host of the runner.
    """

    options: tuple[str, ...]
    grace_seconds: float
    environment: dict[str, str]
    library: str
    control: str
    namespace: str = ""


def run_broker(ready: Connection, setup: BrokerSetup) -> None:
    """Run until it is ended."""
    assert ctypes.CDLL(setup.library).faults_open(setup.control.encode()) == 0
    os.environ.update(setup.environment)

    def settings(given: Any) -> Any:
        return replace(broker_settings(given), session_grace_seconds=setup.grace_seconds)

    vars(process).update({"broker_settings": settings})
    main(["broker", *setup.options, "--ready-fd", str(os.dup(ready.fileno()))])
