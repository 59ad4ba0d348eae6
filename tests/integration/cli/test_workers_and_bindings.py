"""``worker``, ``exchange`` and ``binding``: what they change, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.errors import PreconditionFailed
from kombu_opendata.protocol.messages import Consume
from kombu_opendata.url import parse

from ...support.processes import wait_until
from .conftest import run
from .test_behaviour import completed


def test_a_suspended_worker_gets_nothing_until_it_is_resumed(url: str, client: QueueClient, clerk: QueueClient) -> None:
    client.create("desk")
    client.send("desk", "x")
    told = run("worker", "suspend", "clerk", url=url)
    assert told.returncode == 0, told.stderr
    with pytest.raises(PreconditionFailed, match="suspended"):
        clerk.read("desk", vt=30)
    shown = run("worker", "list", url=url).stdout.splitlines()
    assert any("clerk" in line and "suspended" in line for line in shown)
    assert run("worker", "resume", "clerk", url=url).returncode == 0
    assert [message.body for message in clerk.read("desk", vt=3600)] == ["x"]


def test_a_worker_that_is_gone_is_not_connected_for_any_time(url: str, client: QueueClient) -> None:
    client.create("left")
    client.send("left", "x")
    with QueueClient(f"opendata://{url}", name="passer-by") as passer_by:
        passer_by.read("left", vt=3600)
    wait_until(lambda: not any(one.name == "passer-by" and one.connected for one in client.workers()), 60, "its end")
    (line,) = (line for line in run("worker", "list", url=url).stdout.splitlines() if "passer-by" in line)
    assert line.split()[1:5] == ["passer-by", "gone", "1", "0"]
    assert run("worker", "suspend", "passer-by", url=url).returncode == 1
    assert run("worker", "release", "passer-by", url=url).stdout == "1 message released\n"


def test_a_worker_of_several_processes_is_one_row(url: str, client: QueueClient) -> None:
    """As a Celery worker: one process consumes, also Celery's own queues; others have connections by the same name."""
    client.create("rows")
    client.create("celery@node.celery.pidbox")
    names = ["celery@node"] * 3 + ["producer"] * 2
    with ExitStack() as opened:
        connections = [BrokerConnection(parse(f"opendata://{url}"), Options(name=name)) for name in names]
        for one in connections:
            one.connect()
            opened.callback(one.close)
        for queue in ("rows", "celery@node.celery.pidbox"):
            connections[1].consume(Consume(0, 1, queue, queue, False, False, {}))
        shown = [line.split() for line in run("worker", "list", url=url, COLUMNS="200").stdout.splitlines()]
        (row,) = (words for words in shown if "celery@node" in words)
        assert (row[2], row[4:]) == ("connected", ["0", "0", "rows"])
        assert sum("producer" in words for words in shown) == 1
        listed = [one["name"] for one in json.loads(run("worker", "list", "--json", url=url).stdout)]
        assert sorted(name for name in listed if name in names) == sorted(names)
    client.delete_queue("rows")
    client.delete_queue("celery@node.celery.pidbox")


def test_a_worker_is_named_by_the_end_of_its_id(
    url: str, client: QueueClient, clerk: QueueClient, invoke: Callable[..., Any]
) -> None:
    clerk.heartbeat()
    held = {state.queue: worker for worker in client.workers() for state in client.worker_messages(worker.id)}["held"]
    shown = json.loads(invoke("worker", "messages", held.id[-8:].upper(), "--json").stdout)
    assert "held" in {one["queue"] for one in shown}
    told = invoke("worker", "release", held.id)
    assert told.exit_code == 0, told.output
    assert "released" in told.output
    assert [message.body for message in client.read("held", vt=30)] == ["x"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("worker suspend nobody", 1, "no worker 'nobody': 'opendata-queue worker list' shows ids and names"),
        ("worker messages nobody", 1, "no worker 'nobody'"),
        ("worker reclaim ordesr", 1, "did you mean 'orders'?"),
        ("exchange create news --type direct", 1, "type='topic'"),
        ("exchange create amq.mine", 1, "reserved"),
        ("exchange create x --type round", 2, "'round' is not one of"),
        ("exchange delete nwes --yes", 1, "no exchange 'nwes'; did you mean 'news'?"),
        ("exchange delete amq.topic --yes", 1, "can't be deleted"),
        ("exchange delete news", 2, "Delete exchange 'news' with 1 binding?"),
        ("exchange delete news --if-unused", 1, "has bindings"),
        ("binding list ordesr", 1, "did you mean 'orders'?"),
        ("binding list --exchange nwes", 1, "did you mean 'news'?"),
        ("binding create ordesr news", 1, "did you mean 'orders'?"),
        ("binding create orders nwes", 1, "did you mean 'news'?"),
        ("binding create orders kinds -a x-match=some", 1, "x-match 'some' is unknown"),
        ("binding create orders kinds -a nothing", 2, "name=text"),
        ("binding delete orders news --routing-key a", 1, "opendata-queue binding list orders"),
        ("binding delete mails kinds", 1, "has no such binding"),
    ],
)
def test_what_is_refused(words: str, code: int, text: str, invoke: Callable[..., Any]) -> None:
    told = invoke(*words.split())
    assert told.exit_code == code, told.output
    assert text in told.output
    assert "Traceback" not in told.output


def test_an_exchange_routes_until_its_binding_is_deleted(url: str, client: QueueClient) -> None:
    client.create("readers")
    for words in (
        ["exchange", "create", "paper"],
        ["binding", "create", "readers", "paper", "--routing-key", "de.#"],
        ["exchange", "create", "forms", "--type", "headers", "--transient"],
        ["binding", "create", "readers", "forms", "-a", "kind=order", "-a", "size:=3"],
    ):
        told = run(*words, url=url)
        assert told.returncode == 0, told.stderr
    assert client.test_routing("paper", "de.sports") == ["readers"]
    assert client.test_routing("forms", "", {"kind": "order", "size": 3}) == ["readers"]
    bound = json.loads(run("binding", "list", "readers", "--exchange", "forms", "--json", url=url).stdout)
    assert [one["arguments"] for one in bound] == [{"kind": "order", "size": 3}]
    assert run("binding", "delete", "readers", "paper", "--routing-key", "de.#", url=url).returncode == 0
    assert run("binding", "delete", "readers", "forms", "-a", "size:=3", "-a", "kind=order", url=url).returncode == 0
    assert client.list_bindings("readers") == []
    told = run("exchange", "delete", "paper", "--json", url=url)
    assert json.loads(told.stdout) == {"exchange": "paper", "deleted": True, "bindings": 0}
    assert "paper" not in {info.name for info in client.list_exchanges()}


def test_completion_knows_exchanges_and_workers(url: str, clerk: QueueClient) -> None:
    clerk.heartbeat()
    assert completed("binding list --exchange new", url).stdout == "plain,news\n"
    assert completed("binding create orders kin", url).stdout == "plain,kinds\n"
    assert "plain,clerk\n" in completed("worker suspend cle", url).stdout


def test_the_messages_of_a_worker_fit_a_terminal(clerk: QueueClient, url: str) -> None:
    clerk.create("counter")
    clerk.send("counter", "x")
    clerk.read("counter", vt=3600)
    shown = run("worker", "messages", "clerk", url=url, COLUMNS="80")
    assert "in flight" in shown.stdout, "not folded"
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert shown.stderr == "the terminal is too narrow to show: attempts; --json has everything\n"
