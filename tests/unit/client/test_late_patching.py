"""A process that gevent patches after its fork, as under ``gunicorn --preload``, has locks of greenlets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys, threading
from gevent import monkey
from kombu_opendata.client.result_client import ResultClient
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.url import Address

address = Address("embedded", folder=sys.argv[1])
connection, results = BrokerConnection(address), ResultClient([address])
if pid := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
before = connection.link
assert type(before.lock) is type(threading.RLock())
monkey.patch_all()
assert connection.link is not before
assert type(connection.link.lock) is type(threading.RLock()) is not type(before.lock)
assert connection.link.reentrance.is_entered() is False
with connection.link.lock:
    assert connection.link.reentrance.is_entered()
os._exit(0)
"""


def test_locks_are_made_again(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
