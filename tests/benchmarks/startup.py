"""What a client pays before its first message: the import of the transport and the first connect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median

from . import clients
from .peers import our_broker
from .processes import BenchError, run_alone
from .results import Results
from .targets import OURS, RABBITMQ, REDIS

URLS = {OURS: "opendata:///nowhere", RABBITMQ: "amqp://", REDIS: "redis://"}

TRIES = 5
"""Processes a round starts for each number, because a difference of two noisy times is noisier."""

# Prints the milliseconds to import Kombu and, where a URL is given, the transport behind it. Our package hooks into
# Kombu's own import with an entry point; that cost is ours, so a process that doesn't measure us hides the hook.
_PROGRAM = """
import importlib, sys, time
from importlib import metadata
url = sys.argv[1]
ours = url.startswith("opendata")
found = metadata.entry_points
def others(**which):
    return [one for one in found(**which) if not one.value.startswith("kombu_opendata")]
if not ours:
    metadata.entry_points = others
start = time.perf_counter()
from kombu import Connection, Consumer, Exchange, Producer, Queue
if ours:
    importlib.import_module("kombu_opendata")
if url:
    Connection(url).get_transport_cls()
print((time.perf_counter() - start) * 1000)
"""


def import_round(names: list[str], results: Results) -> None:
    """One round: Kombu alone, then with each transport; records the differences in milliseconds."""
    kombu = _imports("")
    results.add("import.kombu", OURS, kombu)
    for name in names:
        results.add("import.time", name, _imports(URLS[name]) - kombu)


def _imports(url: str) -> float:
    return median(_import_milliseconds(url) for _ in range(TRIES))


def _import_milliseconds(url: str) -> float:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, url], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"import of the transport of {url or 'Kombu'} failed:\n{done.stderr[-1500:]}")
    return float(done.stdout)


def connect_round(number: int, results: Results, folder: Path) -> None:
    """One round: the first connect of a client to a folder that does not exist yet."""
    with our_broker(folder / f"cold-{number}") as peer:
        results.add("connect.time", OURS, run_alone(clients.first_connect, peer))
