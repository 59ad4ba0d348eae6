"""docs/tutorial.md, done block by block as a reader does; what a reader sees is waited for."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kombu_opendata import QueueClient

from ..support.processes import Child, Children, wait_until

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text()
SECONDS = 60


class Reader:
    """Somebody who follows the page in a folder."""

    def __init__(self, folder: Path, started: Children) -> None:
        self.folder = folder
        self.blocks: list[tuple[str, str]] = re.findall(r"(?ms)^```(sh|python)[^\n]*\n(.*?)^```$", PAGE)
        self.started = started
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "OPENDATA_QUEUE_URL": f"{folder}/queue"}

    def block(self, kind: str) -> str:
        """The next block of the page."""
        found, code = self.blocks.pop(0)
        assert found == kind, code
        return code

    def run(self) -> str:
        return self.sh(self.block("sh"))

    def sh(self, code: str) -> str:
        words = ["sh", "-e", "-c", code]
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, code: str, name: str) -> Child:
        child = Child(shlex.split(code), self.folder / f"{name}.log", cwd=self.folder, env=self.env)
        self.started.add(child)
        return child


def succeeded(client: QueueClient) -> int:
    """How many tasks have run, and did not fail."""
    return len(client.list_attempts(queues=["celery"], states=["succeeded"], limit=1000).items)


@pytest.mark.slow
def test_the_tutorial(store_folder: Path, started: Children) -> None:
    reader = Reader(store_folder, started)
    app = store_folder / "tasks.py"
    app.write_text(reader.block("python"))
    start_worker = reader.block("sh")
    worker = reader.start(start_worker, "worker")

    assert reader.run() == "60\n"
    with QueueClient(f"opendata://{store_folder}/queue", name="test") as client:
        _go_on(reader, client, app, worker, start_worker)


def _go_on(reader: Reader, client: QueueClient, app: Path, worker: Child, start_worker: str) -> None:
    reader.run()
    wait_until(lambda: succeeded(client) == 6, SECONDS, "the sofas")
    look = reader.run()
    assert "celery@" in look
    assert "succeeded" in look

    reader.run()
    wait_until(lambda: len(client.list_failures().items) == 3, SECONDS, "the desks")
    assert re.search(r"tasks\.price.*KeyError", reader.run())

    changed, count = re.subn(r"(?m)^PRICES = .*\n", reader.block("python"), app.read_text())
    assert count == 1
    worker.terminate()
    app.write_text(changed)
    worker = reader.start(start_worker, "worker")
    assert "3 " in reader.run()
    wait_until(lambda: succeeded(client) == 9, SECONDS, "the desks, which have a price now")
    assert not client.list_failures().items
    reader.run()

    _see_the_page(reader)

    reader.run()
    wait_until(lambda: succeeded(client) == 109, SECONDS, "each task once")
    reader.run()
    assert succeeded(client) == 109
    assert not reader.blocks
    worker.terminate()


def _see_the_page(reader: Reader) -> None:
    page = reader.start(f"{reader.block('sh').strip()} --listen 127.0.0.1:0", "web")
    wait_until(lambda: "http://" in page.log.read_text(), SECONDS, lambda: f"the page:\n{page.log.read_text()}")
    address = re.search(r"http://\S+", page.log.read_text())
    assert address
    with urllib.request.urlopen(address[0], timeout=SECONDS) as answer:
        assert "celery" in answer.read().decode()
    page.terminate()
