"""`queue alter`, `queue pause` and `queue resume`: what an operator reads, is asked, and is refused."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.queue_client.queue_options import QueueOptions
from kombu_opendata.storage.state.partitions import bounded_key

from ...support.terminal import terminal
from .conftest import HOSTILE, LONG, run


def test_an_alteration_is_asked_for_with_its_numbers(client: QueueClient, url: str) -> None:
    client.create("asked", QueueOptions(max_length=100, message_ttl_seconds=60))
    client.send_batch("asked", list(range(10)))
    words = ("queue", "alter", "asked", "x-max-length=4", "--message-ttl", "1h", "--unset", "x-overflow")
    refused = run(*words, url=url)
    assert refused.returncode == 1
    assert "6 messages exceed the new maximum and are deleted, the oldest first" in refused.stderr
    assert "use force (--force)" in refused.stderr
    with terminal(*words, "--force", columns=200, OPENDATA_QUEUE_URL=url) as shown:
        told = shown.wait_for("Alter queue 'asked'? [y/N]")
        assert "x-max-length: 100 -> 4 (declared: 100)\n" in told
        assert "x-message-ttl: 60000 -> 3600000 (declared: 60000)\n" in told
        assert "6 messages exceed the new maximum" in told
        shown.type(b"n\n")
        assert shown.wait_end() == 1
    assert client.get_queue("asked").overrides == {}
    with terminal(*words, "--force", columns=200, OPENDATA_QUEUE_URL=url) as shown:
        shown.wait_for("[y/N]")
        shown.type(b"y\n")
        assert shown.wait_end() == 0
        assert "queue 'asked' altered" in shown.screen()
    assert client.get_queue("asked").overrides == {"x-max-length": 4, "x-message-ttl": 3_600_000}
    assert client.metrics("asked").ready == 4


def test_a_dry_run_says_the_same_and_changes_nothing(client: QueueClient, url: str) -> None:
    client.create("dry")
    client.send_batch("dry", [1, 2, 3], {"a": "b"})
    words = ("queue", "alter", "dry", "x-filter=a = 'c'", "--filter-mode", "all", "--yes")
    dry = run(*words, "--dry-run", url=url)
    note = "of the 3 messages that wait, 3 do not match the queue's filter or bindings any more; they stay\n"
    assert (
        dry.stdout
        == f"x-filter: none -> a = 'c'\nx-filter-mode: none -> all\n{note}queue 'dry' was not changed (dry run)\n"
    )
    assert client.get_queue("dry").overrides == {}
    would = json.loads(run(*words, "--dry-run", "--json", url=url).stdout)
    done = run(*words, url=url)
    assert done.stdout == dry.stdout.replace("was not changed (dry run)", "altered")
    again = run(*words, url=url)
    assert again.stdout == "queue 'dry' has these arguments already\n"
    assert would["after"] == client.get_queue("dry").effective
    assert would["counts"]["unmatched"] == 3


@pytest.mark.parametrize("name", ["a/b", 'it\'s "odd"', "🐘", HOSTILE, LONG])
def test_names(client: QueueClient, url: str, name: str) -> None:
    client.create(name)
    for words in (("alter", name, "x-max-length=9", "--yes"), ("pause", name), ("resume", name)):
        done = run("queue", *words, url=url)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout + done.stderr
    assert client.get_queue(name).effective == {"x-max-length": 9}


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("alter nobody x-max-length=1", 1, "no queue 'nobody'"),
        ("alter orders", 1, "say which arguments"),
        ("alter orders x-max-length", 2, "write name=text"),
        ("alter orders x-max-length:=a", 2, "no valid JSON"),
        ("alter orders x-max-length=many", 1, "x-max-length must be an integer from 0 up, not 'many'"),
        ("alter orders x-max-lenght=1", 1, "did you mean 'x-max-length'?"),
        ("alter orders x-start=first", 1, "use a replay"),
        ("alter orders durable=false", 1, "the queue's nature"),
        ("alter orders x-max-priority=3", 1, "this broker ignores it"),
        ("alter orders --retry-max-delay 5s", 1, "given with an x-retry-delay"),
        ("alter orders --filter x>", 2, "line 1, column"),
        ("alter orders --max-length 1000", 2, "Alter queue 'orders'? There is no terminal to ask on: add --yes"),
        ("pause nobody", 1, "no queue 'nobody'"),
        ("resume nobody", 1, "no queue 'nobody'"),
    ],
)  # fmt: skip
def test_bad_input(words: str, code: int, text: str, client: QueueClient, invoke: Callable[..., Any]) -> None:
    told = invoke("queue", *words.split())
    assert told.exit_code == code, told.output
    assert text in told.output
    assert client.get_queue("orders").overrides == {}


def test_a_paused_queue_is_seen(client: QueueClient, url: str) -> None:
    client.create("stopped", QueueOptions(max_length=10))
    client.alter("stopped", {"x-max-length": 5, "x-expires": 600_000})
    paused = run("queue", "pause", "stopped", "--publish", url=url)
    assert paused.stdout.startswith("queue 'stopped' is paused (deliveries and publishes), since 20")
    assert paused.stderr == "to resume: opendata-queue queue resume stopped\n"
    assert run("queue", "pause", "stopped", url=url).stdout.startswith("queue 'stopped' is already paused")
    refused = run("send", "stopped", "x", url=url)
    assert refused.returncode == 5
    assert "publish again after 'opendata-queue queue resume stopped'" in refused.stderr
    (listed,) = [line for line in run("queue", "list", url=url).stdout.splitlines() if line.startswith("stopped")]
    assert "deliveries, publishes" in listed
    assert "max-length: 5 (declared 10), expires: 600000 (not declared)" in listed
    shown = run("queue", "show", "stopped", url=url).stdout
    assert re.search(r"(?m)^paused +deliveries, publishes, since 20", shown)
    assert re.search(r"(?m)^x-max-length +5 \(declared 10\)", shown)
    assert "stopped (paused)" in run("queue", "top", "--once", url=url).stdout
    assert "stopped (paused)" in run("status", url=url).stdout
    status = json.loads(run("status", "--json", url=url).stdout)["instances"]["default"]["queues"]["stopped"]
    assert (status["paused"], status["publishes_paused"]) == (True, True)
    assert json.loads(run("queue", "show", "stopped", "--json", url=url).stdout)["paused_at"].endswith("Z")
    part = run("queue", "resume", "stopped", "--publish-only", url=url)
    assert part.stdout == "queue 'stopped' takes publishes again\n"
    assert run("queue", "resume", "stopped", url=url).stdout == "queue 'stopped' is resumed\n"
    assert run("queue", "resume", "stopped", url=url).stdout == "queue 'stopped' was not paused\n"


def test_what_failed_in_a_paused_queue_stays_and_the_exit_code_says_so(client: QueueClient, url: str) -> None:
    client.create("halted")
    client.send("halted", "x")
    client.reject("halted", client.read("halted", vt=30)[0])
    client.pause("halted", publishes=True)
    told = run("failed", "retry", "halted", url=url)
    assert told.stdout == "nothing runs again; 1 stayed (their queue is paused)\n"
    assert told.returncode == 5
    assert "after `queue resume`, the same command continues" in told.stderr
    client.resume("halted")
    assert run("failed", "retry", "halted", url=url).returncode == 0


def test_what_can_be_altered_is_completed(client: QueueClient, url: str) -> None:
    words = "queue alter orders x-max-l"
    asked = {"COMP_WORDS": f"opendata-queue {words}", "COMP_CWORD": "4", "_OPENDATA_QUEUE_COMPLETE": "bash_complete"}
    assert run(url=url, **asked).stdout.split() == ["plain,x-max-length", "plain,x-max-length-bytes"]


def test_a_hint_works_as_it_is_printed(client: QueueClient, url: str) -> None:
    """It names the broker as the command did, in a shell without OPENDATA_QUEUE_URL."""
    client.create("-hinted")
    hints = [
        run("queue", "pause", "--url", url, "--", "-hinted").stderr.removeprefix("to resume: "),
        run("worker", "messages", "nobody", "--url", url).stderr.split("'")[3],
        run("failed", "show", "nothing", "--url", url).stderr.split("'")[1],
        run("exchange", "explain", "--url", url).stderr.split("'")[1],
        run("result", "get", "task-2", "--url", url).stderr.split("'")[1],
    ]
    for hint in hints:
        done = run(*shlex.split(hint)[1:])
        assert done.returncode == 0, done.stderr
    assert not client.get_queue("-hinted").paused


def test_partitions_and_their_limits_are_seen(client: QueueClient, url: str) -> None:
    client.create("tenants", QueueOptions(partition_by="tenant", partition_concurrency=1))
    for tenant in ("acme", "acme", "globex", None):
        client.send("tenants", 1, headers={"tenant": tenant} if tenant else {})
    client.read("tenants")
    assert run("queue", "delay", "tenants", "3600", "--key", "globex", url=url).stdout.startswith(
        "queue 'tenants' is delayed until 20"
    )
    lines = run("queue", "partitions", "tenants", "--order", "key", url=url).stdout.splitlines()[-3:]
    assert [line.split()[0] for line in lines] == ["(none)", "acme", "globex"]
    assert re.search(r"^globex .* delay until 20", lines[2])
    assert sum("concurrency" in line for line in lines) == 1
    found = json.loads(run("queue", "partitions", "tenants", "--search", "glob", "--json", url=url).stdout)
    assert [(row["key"], row["backlog"], row["share"]) for row in found["partitions"]] == [("globex", 1, 1 / 3)]
    assert found["partitions"][0]["opens_at"].endswith("Z")
    limited = run("queue", "partitions", "tenants", "--limit", "1", url=url)
    assert limited.stderr == "2 more: use --offset\n"
    assert run("queue", "partitions", "tenants", "--offset", "9", url=url).stderr == ""
    assert run("queue", "partitions", "tenants", "--order", "size", url=url).returncode == 2


@pytest.mark.parametrize("tenant", ["x" * 300, "a\n\x1b[31mb\x00", "x" * 65_535], ids=["long", "control", "longest"])
def test_a_partition_whose_key_is_a_digest(client: QueueClient, url: str, name: str, tenant: str) -> None:
    """Publish, list and delay it by its whole key, and by the key that is shown."""
    client.create(name, QueueOptions(partition_by="tenant"))
    client.send_batch(name, [1, 2, 3], [{"tenant": tenant}, {"tenant": tenant}, {"tenant": "b"}])
    key = bounded_key(tenant)

    def limits() -> dict[str, str]:
        listed = json.loads(run("queue", "partitions", name, "--json", url=url).stdout)
        rows = {row["key"]: row["limited_by"] for row in listed["partitions"]}
        assert rows == {row.key: row.limited_by for row in client.list_partitions(name).partitions}
        return rows

    assert limits() == {key: "", "b": ""}
    assert [row.backlog for row in client.list_partitions(name, search=key).partitions] == [2]
    client.delay_key(name, 3600, key=tenant)
    assert limits() == {key: "delay", "b": ""}
    assert run("queue", "delay", name, "0", "--key", key, url=url).returncode == 0
    assert limits() == {key: "", "b": ""}
    shown = run("queue", "partitions", name, url=url).stdout
    assert key[:20] in shown
    assert "\x1b" not in shown
    assert [message.body for message in client.read(name, qty=3, where={"tenant": tenant})] == [1, 2]
