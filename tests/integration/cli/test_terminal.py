"""What people see and type in terminals of several widths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kombu_opendata import QueueClient

from ...support.terminal import terminal
from .conftest import run

#: as an application may call its queues
NAMES = (
    "orders",
    "invoice-processing.high-priority.europe-west",
    "invoice-processing.high-priority.us-east",
)


@pytest.fixture(scope="module")
def folder(client: QueueClient, url: str) -> str:
    for name in NAMES:
        client.create(name)
    client.send_batch(NAMES[1], range(1234))
    return url


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_top_once_has_every_name_and_every_line_fits(columns: int, folder: str) -> None:
    with terminal("queue", "top", "--once", "--url", folder, columns=columns) as shown:
        assert shown.wait_end() == 0
        heading, table = re.split(r"(?m)^queue\b", shown.screen())
        lines = ["queue" + table.splitlines()[0], *heading.splitlines(), *table.splitlines()[2:]]
        assert all(len(line) <= columns for line in lines if not line.startswith("the terminal is too narrow"))
        names = "".join(line.split("  ")[0] for line in table.splitlines()[2:])
        assert all(name in names for name in NAMES)
        assert "ready" in lines[0]
        assert ("acked/s" in lines[0]) == (columns > 60)
    assert "1,234" in table


@pytest.mark.parametrize("keys", [b"q", b"Q", b"x\x1b[Aq", b"\x03"])
def test_top_ends_by_a_key(keys: bytes, folder: str) -> None:
    with terminal("queue", "top", "--interval", "60", "--url", folder, columns=80) as shown:
        shown.wait_for("q: quit")
        assert shown.settings_now() != shown.settings, "keys are read as they are typed"
        shown.type(keys)
        assert shown.wait_end() == 0
        assert shown.settings_now() == shown.settings
        assert shown.output.endswith("\x1b[?25h\x1b[?1049l"), "the cursor and the screen of before"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_top_has_a_line_a_queue_with_both_ends_of_its_name(columns: int, folder: str) -> None:
    with terminal("queue", "top", "--url", folder, columns=columns, lines=40) as shown:
        text = shown.wait_for("q: quit").rsplit("queues", 1)[1]
        shown.type(b"q")
        assert shown.wait_end() == 0
    lines = [line for line in text.splitlines() if line.startswith("invoice")]
    assert len(lines) == 2
    for line in lines:
        assert re.match(r"invoice-pr.*….*(rope-west|us-east) ", line)
        assert len(line) <= columns


def test_top_in_a_pipe_needs_no_keyboard(folder: str) -> None:
    told = run("queue", "top", "--count", "2", "--interval", "0.1", url=folder)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count(NAMES[1]) == 2


def test_peek_says_when_a_message_is_due_and_its_priority(client: QueueClient, folder: str) -> None:
    client.create("peeked")
    client.send("peeked", "plain")
    plain = run("peek", "peeked", url=folder).stdout.splitlines()
    assert plain[0].split() == ["id", "received", "attempts", "headers", "body"]
    client.send("peeked", "later", delay=5400)
    client.send("peeked", "urgent", priority=9)
    heading, _, first, second, third = run("peek", "peeked", url=folder).stdout.splitlines()
    assert heading.split() == ["id", "received", "due", "priority", "attempts", "headers", "body"]
    assert re.search(r"\+\d\d:\d\d +0 +0 +plain$", first.rstrip())
    assert re.search(r" in 1h (29|30)m +0 +0 +later$", second.rstrip())
    assert re.search(r"\+\d\d:\d\d +9 +0 +urgent$", third.rstrip())


@pytest.mark.parametrize("verb", ["messages", "attempts"])
def test_a_queue_that_never_was_is_not_found(verb: str, folder: str) -> None:
    for more in ([], ["-q", "orders"], ["--all"], ["--json"]):
        told = run(verb, "-q", "ordesr", *more, url=folder)
        assert (told.returncode, told.stdout) == (1, "")
        assert told.stderr == ("Error: there is no queue 'ordesr', not even in the history; did you mean 'orders'?\n")


def test_the_history_of_a_queue_that_is_gone_is_shown(client: QueueClient, folder: str) -> None:
    client.create("gone")
    client.send("gone", "x", {"kind": "gone"})
    client.archive("gone", client.read("gone", vt=30)[0])
    client.delete_queue("gone")
    told = run("attempts", "-q", "gone", url=folder)
    assert told.returncode == 0, told.stderr
    assert "acked" in told.stdout
    assert run("messages", "-q", "gone", url=folder).returncode == 0
    assert run("messages", "-q", "mails", "-s", "failed", url=folder).stdout == "none\n"


@pytest.mark.parametrize("words", ["queue show ordesr", "peek ordesr", "queue purge ordesr --yes", "send ordesr x"])
def test_the_queue_that_was_probably_meant_is_named(words: str, folder: str) -> None:
    told = run(*words.split(), url=folder)
    assert told.returncode == 1
    assert told.stderr.endswith("; did you mean 'orders'?\n")


def test_a_store_is_named_by_its_option_too(folder: str) -> None:
    stores = [run("store", "stats", *words, "--json") for words in ([folder], ["--store", folder], ["--url", folder])]
    assert [told.returncode for told in stores] == [0, 0, 0], stores[1].stderr
    assert all(Path(folder).name in told.stdout for told in stores)


def test_a_message_and_a_queue_say_how_messages_get_there(client: QueueClient, folder: str) -> None:
    client.create("told")
    id = client.send("told", "x", priority=7)
    shown = run("message", str(id), url=folder).stdout
    assert re.search(r"(?m)^priority +7$", shown)
    assert re.search(r"(?m)^exchange +\(default\)$", shown)
    assert "x-match=any amount:=1" in run("queue", "show", "mails", url=folder).stdout
    assert (
        "binding to the default exchange, key 'told'"
        in run("filter", "explain", "told", "--id", str(id), url=folder).stdout
    )


@pytest.mark.parametrize(
    ("which", "question"),
    [
        (["--all"], "Delete 3 failures of queue 'broken'?"),
        (["--all", "--limit", "2"], "Delete 2 failures of queue 'broken'?"),
        (["--until", "1d"], "Delete 0 failures of queue 'broken'?"),
    ],
)
def test_the_question_says_what_would_be_deleted(which: list[str], question: str, folder: str) -> None:
    with terminal("failed", "delete", "broken", *which, "--url", folder, columns=120) as shown:
        shown.wait_for(question)
        shown.type(b"n\n")
        assert shown.wait_end() == 1
