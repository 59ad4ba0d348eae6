"""Every verb, as JSON and as text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from kombu_opendata import QueueClient
from kombu_opendata.cli.administration.brokers import broker_tools
from kombu_opendata.cli.root import main

from .conftest import LONG, run

pytestmark = pytest.mark.usefixtures("client", "clerk")


class Verb(NamedTuple):
    """A command line; what its JSON must be (of many lines, all documents); and a text its table must have."""

    words: str
    check: Callable[[Any], bool]
    text: str


VERBS = [
    Verb("status", lambda j: "orders" in j["instances"]["default"]["queues"], "orders"),
    Verb("broker status", lambda j: j["pid"] > 0, "instance default"),
    Verb("maintain expire_leases", lambda j: j["duties"] == ["expire_leases"], "leases expired"),
    Verb("queue list", lambda j: {"orders", "big"} <= {q["name"] for q in j}, "filter: amount > 100"),
    Verb("queue show big", lambda j: j["metrics"]["ready"] == 2, "x-filter"),
    Verb("queue partitions orders", lambda j: (j["matching"], j["by"]) == (0, ""), "no partitions"),
    Verb("queue delay orders 0", lambda j: j["until"] is None, "is not delayed any more"),
    Verb("queue create new --max-length 7", lambda j: j["arguments"]["x-max-length"] == 7, "'new' is ready"),
    Verb(
        "queue alter orders x-max-length=1000 --message-ttl 30d --unset x-overflow --yes",
        lambda j: j["after"]["x-message-ttl"] == 30 * 86_400_000,
        "'orders' has these arguments already",
    ),
    Verb("queue alter orders --reset --yes", lambda j: j["overrides"] == {}, "'orders' has these arguments already"),
    Verb("queue pause mails --publish", lambda j: j["deliveries"] and j["publishes"], "already paused (deliveries and"),
    Verb("queue resume mails", lambda j: j["changed"], "'mails' was not paused"),
    Verb("queue metrics orders", lambda j: j[0]["ready"] == 5, "ready          5"),
    Verb("queue recent orders", lambda j: set(j["queues"]) == {"orders"}, ""),  # at first, there are no metrics yet
    Verb("queue top --once", lambda j: {"mails"} <= {q["queue"] for q in j["queues"]}, "queues"),
    Verb("instance create spare", lambda j: j["instance"] == "spare", "already exists"),
    Verb("instance list", lambda j: "default" in {i["instance"] for i in j}, "spare"),
    Verb("exchange list", lambda j: {"amq.topic", "news"} <= {x["name"] for x in j}, "durable"),
    Verb("exchange create made --type direct", lambda j: j["type"] == "direct", "'made' is ready"),
    Verb("exchange show news", lambda j: j["bindings"][0]["queue"] == "mails", "de.#"),
    Verb("exchange explain news --routing-key de.x", lambda j: j["queues"] == ["mails"], "mails"),
    Verb("binding list", lambda j: {"de.#"} <= {b["routing_key"] for b in j}, "x-match=any amount:=1"),
    Verb("binding create mails news --routing-key us.#", lambda j: j["queue"] == "mails", "bound to exchange 'news'"),
    Verb("user whoami", lambda j: (j["user"], j["instance"]) == ("", "default"), "an anonymous user"),
    Verb("worker list", lambda j: {"clerk", "opendata-queue"} <= {w["name"] for w in j}, "connected"),
    Verb("worker messages clerk", lambda j: j[0]["queue"] == "held", "in flight"),
    Verb("worker suspend clerk", lambda j: len(j["workers"]) >= 1, "suspended"),
    Verb("worker resume clerk", lambda j: j["consumers"] == 0, "with 0 consumers resumed"),
    Verb("worker reclaim orders", lambda j: j == {"queue": "orders", "messages": 0}, "0 messages reclaimed"),
    Verb("worker shutdown clerk", lambda j: j["consumers"] == 0, "0 consumers cancelled"),
    Verb("peek mails", lambda j: j[0]["body"].startswith("\x1b"), r"\x1b[31mred\u202e\nnext"),
    Verb("message 0", lambda j: j["message"]["body"] == {"number": 0}, "header amount: 0"),
    Verb("send mails hello -H n:=3", lambda j: j["id"] > 5, ""),
    Verb("publish hello --routing-key mails", lambda j: j["queues"] == ["mails"], "mails"),
    Verb("messages -q old -s done", lambda j: len(j["items"]) == 3 and j["next"] is None, "old: done"),
    Verb("attempts -q broken", lambda j: len(j["items"]) == 3, "rejected"),
    Verb("done list old", lambda j: {m["state"] for m in j} == {"done"}, "settled"),
    Verb("done count old", lambda j: j == {"old": 3}, "old"),
    Verb("failed list broken", lambda j: {m["kind"] for m in j["items"]} == {"failed"}, "rejected"),
    Verb("failed list --by queue,reason", lambda j: j["groups"][0]["count"] == 3, "broken"),
    Verb("failed show task-2", lambda j: j[0]["task"] == "app.mail", "failed retry --id task-2"),
    Verb("task show task-2", lambda j: j["args"] == [1] and j["state"] == "failed", r"red\u202e"),
    Verb("result get task-1", lambda j: j["value"] == [7], "[7]"),
    Verb(
        "replay orders --from first", lambda j: j["done"] and j["started_at"].endswith("Z"), "replay of queue 'orders'"
    ),
    Verb("filter explain big --id 4", lambda j: j["matches"], "queue 'big' gets it"),
    Verb("store inspect --message 0", lambda j: j["places"][0]["queue"] == "orders", "metadata"),
    Verb("store stats", lambda j: j["queues"]["mails"]["delayed"] == 1, "ready"),
    Verb("store verify", lambda j: j["status"] == "clean", "clean: "),
    # they change what others look at
    Verb("queue purge purge-me --yes", lambda j: j["purged"] in (0, 2), "messages purged"),
    Verb("queue copy orders new --limit 2", lambda j: j["copied"] == 2, "copied from queue 'orders' to 'new'"),
    Verb("queue move orders new --state delayed", lambda j: j["moved"] == 0, "0 messages moved from queue 'orders'"),
    Verb("failed retry broken --limit 1", lambda j: j["redriven"] == 1, "1 message ready again"),
    Verb("failed count broken", lambda j: len(j["broken"]) == 3, "archived"),
    Verb("failed archive broken --limit 1", lambda j: j["archived"] == 1, "of queue 'broken' archived"),
    Verb("failed list broken --archived", lambda j: j["items"][0]["kind"] == "archived", "archived"),
    Verb("failed delete broken --all --yes", lambda j: j["deleted"] in (0, 1), "deleted"),
    Verb("failed delete broken --all --yes --archived", lambda j: j["deleted"] == 1, "deleted"),
    Verb("worker release clerk", lambda j: j["messages"] in (0, 1), "released"),
    Verb("done delete old --older-than 30d --yes", lambda j: j["deleted"] == 0, "0 done messages deleted"),
]
#: tested below, or by tests of their own
OTHERS = {
    "broker", "broker hand-over", "broker reload", "broker start", "broker stop", "config check", "config show",
    "hash-secret", "job list", "job show", "job wait", "job cancel", "job retry", "job delete", "ping", "queue delete",
    "exchange delete", "binding delete", "store backup", "store repair", "store restore", "user add", "user list",
    "user permit", "user delete", "web",
}  # fmt: skip


def all_verbs(group: click.Group = main, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from all_verbs(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def test_every_verb_is_here() -> None:
    verbs = {*all_verbs(), *(f"broker {name}" for name in broker_tools.commands)}
    tried = {verb for verb in verbs for case in VERBS if f"{case.words} ".startswith(f"{verb} ")} | OTHERS
    assert verbs == tried


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.words)
def test_the_verb_does_what_it_says(verb: Verb, url: str, invoke: Callable[..., Any]) -> None:
    told = run(*verb.words.split(), "--json", url=url)
    assert told.returncode == 0, told.stderr
    assert not told.stderr
    assert told.stdout.isascii()
    assert verb.check(documents(told.stdout)), told.stdout
    shown = invoke(*verb.words.split())
    assert shown.exit_code == 0, shown.output
    assert verb.text in shown.output
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown.output), "nothing for the terminal to obey"


def documents(text: str) -> Any:
    """One document, or those of all lines."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def test_a_list_of_one_line_is_one_document_a_line(url: str) -> None:
    told = run("peek", "orders", "-n", "1", "--json", url=url)
    assert json.loads(told.stdout)["id"] == 0


@pytest.mark.parametrize("words", ["status", "queue list", "queue metrics"])
def test_names_are_whole_and_harmless_on_a_line_each(words: str, url: str) -> None:
    lines = run(*words.split(), url=url).stdout.splitlines()
    names = {line.split()[0] for line in lines if line and not line.isspace()}
    assert {LONG, r"\x1b[31mred\u202e\nnext"} <= names


@pytest.mark.parametrize(
    ("words", "times"),
    [
        ("messages -q old -n 1", 5),
        ("attempts -q broken -n 1", 2),
        ("status", 6),
        ("store stats", 1),
        ("peek orders -n 1", 1),
    ],
)
def test_times_in_json_are_in_utc(words: str, times: int, url: str) -> None:
    told = run(*words.split(), "--json", url=url).stdout
    assert "_at_ms" not in told
    assert '"at_ms"' not in told
    assert len(re.findall(r'at": ("\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"|null)', told)) >= times


def test_a_queue_is_deleted(client: QueueClient, url: str) -> None:
    refused = run("queue", "delete", "drop-me", url=url)
    assert refused.returncode == 2
    assert "add --yes" in refused.stderr
    told = run("queue", "delete", "drop-me", "--yes", "--json", url=url)
    assert json.loads(told.stdout) == {"queue": "drop-me", "deleted": True, "messages": 1}
    assert "drop-me" not in {info.name for info in client.list_queues()}


@pytest.mark.damages_store
def test_stop_and_what_is_left_without_a_broker(store_folder: Path) -> None:
    url = str(store_folder)
    assert run("queue", "create", "q", url=url).returncode == 0
    assert run("send", "q", "x", url=url).returncode == 0
    told = run("broker", "stop", url=url)
    assert told.returncode == 0, told.stderr
    assert not (store_folder / "broker.pid").exists()
    assert run("broker", "stop", url=url).returncode == 3
    for verb in (["status"], ["queue", "list"], ["peek", "q"], ["messages"], ["queue", "top", "--once"]):
        told = run(*verb, url=url)
        assert told.returncode == 3
        assert told.stderr.startswith("Error: no broker runs for")
        assert f"opendata-queue store stats {url}" in told.stderr
    assert not (store_folder / "broker.pid").exists(), "looking started one"
    assert json.loads(run("store", "stats", url, "--json").stdout)["queues"]["q"]["ready"] == 1
    assert run("store", "verify", url).returncode == 0
    for victim in (store_folder / "default").rglob("*.sst"):
        victim.write_bytes(victim.read_bytes()[:-7] + b"garbage")
    told = run("store", "verify", url)
    assert told.returncode == 4
    assert "what to do" in told.stdout
