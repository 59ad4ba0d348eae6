"""A broker with a bit of everything in it, and ways to run commands."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kombu_opendata import QueueClient
from kombu_opendata.cli.root import main
from kombu_opendata.protocol.messages import StoreResult
from kombu_opendata.queue_client.queue_options import QueueOptions

from ...support.served import COMMAND

#: what a terminal takes for commands, a text that runs from right to left, and a line that ends
HOSTILE = "\x1b[31mred\u202e\nnext"
LONG = "long" * 50


def run(*arguments: str, url: str = "", stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, as the console script does."""
    given = {"COLUMNS": None, "OPENDATA_QUEUE_URL": url or None, **env}
    done = CliRunner().invoke(main, arguments, input=stdin, env=given, catch_exceptions=False, prog_name=COMMAND.name)
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def run_script(*arguments: str, url: str = "", stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run the real console script, which takes as long as twenty commands in this process."""
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "OPENDATA_QUEUE_URL")}
    given = {**clean, **({"OPENDATA_QUEUE_URL": url} if url else {}), **env}
    return subprocess.run(
        [str(COMMAND), *arguments], input=stdin, env=given, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def client(module_store_folder: Path) -> Iterator[QueueClient]:
    """Of a broker whose queues have waiting, delayed, archived and failed messages."""
    with QueueClient(f"opendata://{module_store_folder}") as opened:
        for name in ("orders", "mails", "drop-me", "purge-me", "old", "broken", HOSTILE, LONG):
            opened.create(name)
        opened.create("big", QueueOptions(filter="amount > 100"))
        for number in range(5):
            opened.send("orders", {"number": number}, {"amount": 50 * number})
        opened.send("mails", HOSTILE, {"subject": HOSTILE})
        opened.send("mails", "later", delay=3600)
        opened.send_batch("purge-me", ["one", "two"])
        opened.send("drop-me", "x")
        for queue, settle in (("old", opened.archive), ("broken", opened.reject)):
            opened.send_batch(queue, range(3), {"part": queue})
            for message in opened.read(queue, vt=30, qty=3):
                settle(queue, message)
        opened.create("tasks")
        for id in ("task-1", "task-2"):
            opened.send("tasks", [[1], {"to": HOSTILE}, {}], {"task": "app.mail", "id": id})
        opened.archive("tasks", opened.read("tasks", vt=30)[0])
        opened.reject("tasks", opened.read("tasks", vt=30)[0])
        opened.calls.call(StoreResult(0, b"celery-task-meta-task-1", 2, b'{"status": "SUCCESS", "result": [7]}', 0))
        opened.declare_exchange("news")
        opened.declare_exchange("kinds", "headers")
        opened.bind("mails", "news", "de.#")
        opened.bind("mails", "kinds", "", {"x-match": "any", "amount": 1})
        yield opened


@pytest.fixture(scope="module")
def clerk(client: QueueClient, module_store_folder: Path) -> Iterator[QueueClient]:
    """A client with a name that is connected and holds a message of a queue."""
    with QueueClient(f"opendata://{module_store_folder}", name="clerk") as opened:
        opened.create("held")
        opened.send("held", "x")
        opened.read("held", vt=3600)
        yield opened


@pytest.fixture(scope="module")
def url(client: QueueClient, module_store_folder: Path) -> str:
    """The folder, which is how a target may be named."""
    return str(module_store_folder)


@pytest.fixture
def invoke(url: str) -> Callable[..., Result]:
    """Runs a command in this process, against the broker."""

    def invoke_one(*arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(main, arguments, env={"OPENDATA_QUEUE_URL": url}, **options)

    return invoke_one
