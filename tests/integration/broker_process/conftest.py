"""The embedded broker of a folder, one that is run by hand, and clients in processes of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ...support.processes import Child, Children
from ...support.served import ServedBroker

CONNECT = """
import os, signal, sys, time
import kombu_opendata
from kombu import Connection
connection = Connection(sys.argv[1])
channel = connection.channel()
"""


@pytest.fixture
def script(tmp_path: Path, broker_url: str, started: Children) -> Callable[..., Child]:
    """Runs Python code in a process of its own, with an open ``channel`` of ``connection``."""

    def run(code: str, name: str = "script") -> Child:
        child = Child([sys.executable, "-c", CONNECT + code, broker_url], tmp_path / f"{name}.log", cwd=tmp_path)
        started.add(child)
        return child

    return run


@pytest.fixture
def serve(store_folder: Path, started: Children) -> Callable[..., ServedBroker]:
    """Runs ``opendata-queue broker`` on the store, listening on ``by-hand.sock``."""

    def run(*options: str) -> ServedBroker:
        listen = ("--listen", f"unix:{store_folder}/by-hand.sock")
        child = ServedBroker(store_folder, "--store", f"file://{store_folder}", *listen, *options)
        started.add(child)
        return child

    return run
