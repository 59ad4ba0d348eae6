"""An idle store: looked at with `--start`, its broker started and stopped; hints name the next command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from kombu_opendata import QueueClient
from kombu_opendata.cli.hints import START, next_command
from kombu_opendata.cli.root import main

from ...support.broker import EmbeddedBroker
from ...support.command_lines import VERBS
from .conftest import run

LOOKERS = sorted(
    verb
    for verb, command in VERBS.items()
    if any(each.name == START for each in command.params) and verb != "web"  # which runs, and says it on its page
)
#: what they need besides their names
ARGUMENTS = {
    "done list": "old",
    "exchange explain": "--routing-key old",
    "exchange show": "amq.topic",
    "filter explain": "old --id 0",
    "failed show": "0",
    "job show": "nightly",
    "job wait": "nightly",
    "message": "0",
    "peek": "old",
    "queue partitions": "old",
    "queue show": "old",
    "queue top": "--once",
    "replay": "--progress",
    "result get": "0",
    "task show": "0",
    "worker messages": "opendata-queue",
}
#: verbs that say with 1 that there is no such thing
NOT_THERE = {"failed show", "job show", "job wait", "result get", "task show"}


@pytest.fixture(scope="module")
def idle(module_store_folder: Path) -> Path:
    """A store with a message, whose broker has ended."""
    with QueueClient(f"opendata://{module_store_folder}") as client:
        client.create("old")
        client.send("old", "x")
    EmbeddedBroker(module_store_folder).terminate()
    return module_store_folder


def test_hints_of_an_app_name_the_app() -> None:
    @click.command()
    def verb() -> None:
        click.echo(next_command("queue resume", "a b"))

    root = click.Group("celery", params=[click.Option(["-A", "--app"])], commands={"verb": verb})
    assert CliRunner().invoke(root, ["-A", "tasks", "verb"]).output == "celery -A tasks opendata queue resume 'a b'\n"


@pytest.fixture
def invoke(idle: Path) -> Callable[..., Result]:
    def invoke_one(*words: str, **options: Any) -> Result:
        return CliRunner().invoke(main, words, env={"OPENDATA_QUEUE_URL": str(idle)}, **options)

    return invoke_one


def test_the_broker_of_an_idle_store_is_started_once_and_stays(idle: Path) -> None:
    broker = EmbeddedBroker(idle)
    told = run("queue", "list", url=str(idle))
    assert (told.returncode, told.stdout) == (3, "")
    assert f"'opendata-queue broker start {idle}', or add --start" in told.stderr
    hinted = told.stderr.split("'")[1]
    first = run(*shlex.split(hinted)[1:], "--json")
    assert json.loads(first.stdout) == {
        "pid": broker.pid(), "url": f"opendata://{idle}", "folder": str(idle), "socket": f"{idle}/broker.sock",
        "started": True, "idle_exit_seconds": 0,
    }  # fmt: skip
    again = run("broker", "start", str(idle))
    assert again.returncode == 0
    assert f"runs already: pid {broker.pid()}" in again.stdout
    assert f"'opendata-queue broker stop {idle}' ends it" in again.stdout
    stopped = run("broker", "stop", "--json", url=str(idle))
    assert json.loads(stopped.stdout)["stopped"] is True
    assert broker.pid() is None
    short = run("broker", "start", str(idle), "--idle-exit", "90s")
    assert "it ends after 90 s without clients" in short.stdout
    broker.terminate()


@pytest.mark.parametrize("verb", LOOKERS)
def test_no_verb_that_looks_starts_it_unasked(verb: str, invoke: Callable[..., Result], idle: Path) -> None:
    told = invoke(*verb.split(), *ARGUMENTS.get(verb, "").split())
    assert told.exit_code == 3, told.output
    assert "broker start" in told.stderr
    assert "or add --start" in told.stderr
    assert EmbeddedBroker(idle).pid() is None


def test_those_that_are_told_to_start_it(invoke: Callable[..., Result], idle: Path) -> None:
    for verb in LOOKERS:  # all but the first find it running
        told = invoke(*verb.split(), *ARGUMENTS.get(verb, "").split(), "--start")
        assert told.exit_code == (1 if verb in NOT_THERE else 0), told.output
    EmbeddedBroker(idle).terminate()


@pytest.mark.parametrize("words", ["ping", "broker reload", "broker hand-over"])
def test_a_verb_about_a_running_broker_starts_none(words: str, invoke: Callable[..., Result], idle: Path) -> None:
    told = invoke(*words.split())
    assert told.exit_code == 3
    assert f"'opendata-queue broker start {idle}'; " in told.stderr
    assert EmbeddedBroker(idle).pid() is None


def test_a_path_without_a_store_is_not_filled(tmp_path: Path) -> None:
    for words in (["broker", "start"], ["queue", "list", "--start"], ["queue", "purge", "q", "--yes"]):
        told = CliRunner().invoke(main, [*words, "--url", f"{tmp_path}/it's here"])
        assert told.exit_code == 1
        assert "there is no store" in told.stderr
        assert "--url '" in told.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_broker_elsewhere_is_not_started() -> None:
    told = CliRunner().invoke(main, ["broker", "start", "opendata://localhost:1"])
    assert told.exit_code == 1
    assert "start that broker where it runs" in told.stderr
