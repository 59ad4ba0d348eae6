"""What all commands have in common: bad input, exit codes, asking, pipes, completion, pages."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.queue_client.queue_options import QueueOptions

from ...support.broker import EmbeddedBroker
from ...support.processes import Children
from ...support.served import COMMAND, ServedBroker
from ...support.unprivileged import unprivileged
from .conftest import HOSTILE, run, run_script


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("queue show nobody", 1, "no queue 'nobody'"),
        ("queue delete nobody --yes", 1, "nobody"),
        ("peek nobody", 1, "nobody"),
        ("message 999999", 1, "999999"),
        ("send nobody x", 1, "create it first"),
        ("publish x --routing-key nobody", 1, "no queue matches"),
        ("done delete old", 2, "--older-than, --id, --all"),
        ("done delete old --older-than 30", 2, "30d"),
        ("done delete old --older-than 1d", 2, "add --yes"),
        ("queue purge orders", 2, "add --yes"),
        ("send orders {x --as json", 2, "is not json"),
        ("send orders x -H nothing", 2, "name=text"),
        ("send orders x -H a:=NaN", 2, "NaN is not a JSON number"),
        ("send orders Infinity --as json", 2, "Infinity is not a JSON number"),
        ("messages --since yesterday", 2, "is not a time"),
        ("messages --limit 0", 2, "1 to 1,000"),
        ("messages --limit 1000000000", 2, "1 to 1,000"),
        ("messages --next rubbish", 2, "cursor"),
        ("attempts --status done", 2, "No such option"),
        ("replay orders", 2, "--from POSITION"),
        ("replay orders --from tomorrow", 2, "not a position in the log"),
        ("replay orders --from 999999", 1, "future"),
        (f"replay orders --from {10**25}", 2, "9223372036854775807"),
        (f"queue create q2 --start {10**25}", 2, "9223372036854775807"),
        ("send orders x --delay 2h --at 2026-12-12", 2, "--delay or --at"),
        ("publish x --routing-key orders --delay 2h --at now", 2, "--delay or --at"),
        ("queue list --tls-ca /no/such/file", 2, "/no/such/file"),
        ("broker --store memory://x --listen nowhere", 2, "'nowhere'"),
        ("broker --store memory://x --listen tcp:127.0.0.1:0 --metrics here:there", 2, "'here:there'"),
        ("broker reloa", 2, "Did you mean 'reload'?"),
        ("replay orders --cancel", 1, "no replay to stop"),
        ("failed retry orders --where x>", 2, "line 1, column"),
        ("queue create q2 --filter x>", 2, "line 1, column"),
        ("queue create orders --max-length 3", 1, "orders"),
        ("queue move orders orders", 1, "name another target"),
        ("queue move orders nobody", 1, "nobody"),
        ("queue copy orders mails --where x>", 2, "line 1, column"),
        ("queue copy orders mails --state in_flight", 2, "'in_flight' is not one of"),
        ("exchange explain --routing-key nobody", 1, "no queue would get it"),
        ("exchange explain nowhere", 1, "no exchange 'nowhere'"),
        ("queue create q2 --argument x-max-lenght:=100", 1, "did you mean 'x-max-length'? To keep it"),
        ("queue create q2 --argument max-length:=100", 1, "did you mean 'x-max-length'?"),
        ("filter explain", 2, "QUEUE"),
        ("filter explain --filter x>3 -H x=1", 1, "does not match"),
        ("store inspect --kind nonsense", 2, "nonsense"),
        ("store inspect --key xyz", 2, "hexadecimal"),
        ("store inspect --key=", 2, "--key is empty"),
        ("store inspect --message 999999", 1, "no message 999999"),
        ("store stats /nowhere/at/all", 1, "no such folder"),
        ("queue list --url /tmp/odq-nobody-there", 3, "no broker runs"),
        ("queue list --url opendata://127.0.0.1:1", 3, "127.0.0.1"),
        ("queue list --url redis://localhost", 2, "redis"),
        ("send q x --url /tmp/odq-nobody-there", 1, "there is no store"),
        ("broker stop --url opendata://localhost:1", 1, "stop that broker where it runs"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(words: str, code: int, text: str, invoke: Callable[..., Any]) -> None:
    told = invoke(*words.split())
    assert told.exit_code == code, told.output
    assert text in told.output
    assert "Traceback" not in told.output


def test_without_a_target_it_says_how_to_name_one() -> None:
    told = run_script("queue", "list")
    assert told.returncode == 2
    assert "OPENDATA_QUEUE_URL" in told.stderr


def test_the_url_may_come_before_the_verb(url: str, client: QueueClient) -> None:
    for words in (("--url", url, "queue", "list"), ("queue", "--url", url, "list"), ("queue", "list", "--url", url)):
        told = run(*words)
        assert told.returncode == 0, told.stderr
        assert "orders" in told.stdout
    assert "no broker runs for /nowhere" in run("--url", url, "queue", "list", "--url", "/nowhere").stderr
    told = run("--url", url, "failed", "show", "none")
    assert f"'opendata-queue failed list --url {url}'" in told.stderr


@pytest.mark.parametrize("verb", ["queue list", "queue metrics", "queue top --once", "done count"])
def test_tables_leave_out_celerys_own_queues(verb: str, url: str, client: QueueClient) -> None:
    own = ("celeryev.7d11dbb0", "celery@vm.celery.pidbox")
    for name in own:
        client.create(name)
    told = run(*verb.split(), url=url, COLUMNS="200")
    assert "orders" in told.stdout
    assert not any(name in told.stdout for name in own)
    every = run(*verb.split(), "--all", url=url, COLUMNS="200").stdout
    assert all(name in every for name in own)
    for name in own:
        client.delete_queue(name)


def test_status_says_of_what_its_limit_is(url: str, client: QueueClient) -> None:
    told = run("status", url=url).stdout
    assert re.search(r"store: [0-9.]+ MiB; limit for settled messages: [0-9,.]+ MiB \(--retention-bytes\)", told)


def test_a_message_that_is_due_later_says_when(url: str, client: QueueClient) -> None:
    told = run("messages", "-q", "mails", "-s", "ready", url=url, COLUMNS="200").stdout
    assert told.count("mails: delayed, due 20") == 1


def test_arguments_of_a_failed_task_are_masked_and_cut(url: str, client: QueueClient) -> None:
    client.create("pay")
    arguments = {"card": "4111", "password": "s3cret", "note": "x" * 5_000}
    client.send("pay", [["first"], arguments, {}], {"task": "app.pay", "id": "pay-1"})
    client.reject("pay", client.read("pay", vt=30)[0])
    for verb in ("failed", "task"):
        told = run(verb, "show", "pay-1", url=url).stdout
        assert re.search(r'(?m)^args +\["first"\]$', told)
        (line,) = (line for line in told.splitlines() if line.startswith("kwargs"))
        assert '"card": "4111"' in line
        assert "s3cret" not in told
        assert line.endswith("…")
        assert 1_900 < len(line) < 2_100
    (shown,) = json.loads(run("failed", "show", "pay-1", "--json", url=url).stdout)
    assert shown["kwargs"] == {**arguments, "password": "••••••"}
    assert (
        "args"
        not in run("failed", "show", str(client.list_failures(queues=["broken"]).items[0].message_id), url=url).stdout
    )


def test_a_reader_that_leaves_is_no_error(client: QueueClient, url: str) -> None:
    client.create("long")
    client.send_batch("long", ["x" * 1000] * 500)
    script = f"'{COMMAND}' peek long -n 500 --json --url {url} | head -n 1"
    told = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(told.stdout)["queue"] == "long"
    assert told.stderr == ""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("queue list >&-", 0, ""),
        ("queue list --json >&-", 0, ""),
        ("send orders x >&-", 0, ""),
        ("send orders <&- >&-", 0, ""),
        ("send orders -f - <&- >&-", 0, ""),
        ("queue purge orders <&-", 2, "add --yes"),
        ("queue show nobody >&- 2>&-", 1, ""),
    ],
)
def test_a_closed_stream_is_an_empty_one(words: str, code: int, told: str, url: str) -> None:
    script = f"OPENDATA_QUEUE_URL={url} '{COMMAND}' {words}"
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == code, ended.stderr
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout


def test_lines_are_messages_and_pages_lead_on(client: QueueClient, url: str, invoke: Callable[..., Any]) -> None:
    client.create("lines")
    told = invoke("send", "lines", "--lines", "--as", "json", "-H", "kind=line", input="1\n2\n3\n")
    assert told.exit_code == 0, told.output
    assert [message.body for message in client.peek("lines", 10)] == [1, 2, 3]
    first = json.loads(invoke("messages", "-q", "lines", "-n", "2", "--order", "asc", "--json").stdout)
    second = json.loads(
        invoke("messages", "-q", "lines", "-n", "2", "--order", "asc", "--json", "--next", first["next"]).stdout
    )
    assert len(first["items"]) == 2
    assert len(second["items"]) == 1
    assert second["next"] is None
    everything = invoke("messages", "-H", "kind=line", "--all", "--json", "--since", "1h").stdout.splitlines()
    assert [json.loads(line)["queues"][0]["queue"] for line in everything] == ["lines"] * 3


def test_lines_that_were_sent_before_an_error_are_told(client: QueueClient, invoke: Callable[..., Any]) -> None:
    client.create("short", QueueOptions(max_length=1500, overflow="reject-publish"))
    full = invoke("send", "short", "--lines", input="1\n" * 2500)
    assert full.exit_code == 5
    told, error = full.stderr.splitlines()
    assert told == "lines 1 to 1,000 were sent; the error concerns the lines after them"
    assert error.startswith("Error: queue 'short' is full")
    assert client.metrics("short").ready == 1000
    again = invoke("send", "short", "--lines", input="1\n" * 501)
    assert (again.exit_code, len(again.stderr.splitlines())) == (5, 1), "nothing was sent"

    client.create("typed")
    bad = invoke("send", "typed", "--lines", "--as", "json", input="1\n" * 1000 + "2\nx\n")
    assert bad.exit_code == 2
    assert bad.stderr.startswith("lines 1 to 1,000 were sent;")
    assert "line 1,002: b'x' is not json" in bad.stderr
    assert [message.body for message in client.peek("typed", 1000)] == [1] * 1000


def test_numbers_that_json_does_not_have_are_texts(client: QueueClient, invoke: Callable[..., Any]) -> None:
    client.create("odd")
    client.send("odd", "x", {"nan": float("nan"), "low": float("-inf")})
    headers = json.loads(invoke("peek", "odd", "--json").stdout)["headers"]
    assert headers == {"nan": "nan", "low": "-inf"}


@pytest.mark.parametrize("verb", ["messages", "attempts"])
@pytest.mark.parametrize("limits", [("--since", "2h"), ("--until", "0s"), ("--since", "2h", "--until", "now")])
def test_pages_of_the_last_hours_lead_on(verb: str, limits: tuple[str, ...], invoke: Callable[..., Any]) -> None:
    words = [verb, "-q", "broken", "-n", "1", "--order", "asc"]
    first = invoke(*words, *limits)
    (hint,) = first.stderr.splitlines()
    second = invoke(*words, *hint.removeprefix("next page: ").split())
    assert second.exit_code == 0, second.output
    _, back = second.stderr.splitlines()
    assert invoke(*words, *back.removeprefix("prev page: ").split()).stdout == first.stdout
    told = json.loads(invoke(*words, *limits, "--json").stdout)
    window = [part for name in limits[::2] for part in (name, told[name.removeprefix("--")])]
    again = invoke(*words, *window, "--json", "--next", told["next"])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["items"]


def test_an_argument_of_another_broker_is_forced(url: str) -> None:
    words = "queue", "create", "forced", "--argument", "x-colour=red", "--json"
    told = run(*words, url=url)
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == (
        "Error: queue 'forced': the argument 'x-colour' is unknown and has no effect. "
        "To keep it for another broker, use force (--force).\n"
    )
    assert json.loads(run(*words, "--force", url=url).stdout)["arguments"] == {"x-colour": "red"}


def test_a_question_can_be_refused(client: QueueClient, invoke: Callable[..., Any], monkeypatch: Any) -> None:
    """The runner has no terminal: where there is one, click asks."""
    from kombu_opendata.cli import exit_codes

    client.create("asked")
    monkeypatch.setattr(exit_codes, "can_ask", lambda: True)
    refused = invoke("queue", "delete", "asked", input="n\n")
    assert refused.exit_code == 1
    assert client.get_queue("asked").name == "asked"
    assert invoke("queue", "delete", "asked", input="y\n").exit_code == 0
    assert "asked" not in {info.name for info in client.list_queues()}


def completed(words: str, url: str) -> subprocess.CompletedProcess[str]:
    """What follows these words, of which the last one is not whole."""
    asked = {"COMP_WORDS": f"opendata-queue {words}", "COMP_CWORD": str(len(words.split(" ")))}
    return run(url=url, **asked, _OPENDATA_QUEUE_COMPLETE="bash_complete")


@pytest.mark.parametrize(
    "verb",
    ["peek", "messages -q", "attempts --queue", "attempts -q mails -q", "message 1 --queue", "store inspect --queue"],
)
def test_completion_knows_the_queues(verb: str, url: str) -> None:
    assert completed(f"{verb} or", url).stdout == "plain,orders\n"


def test_completion_without_a_broker_is_silent() -> None:
    nobody = completed("peek or", "/tmp/odq-nobody-there")
    assert (nobody.stdout.strip(), nobody.stderr) == ("", "")


def test_completion_leaves_out_names_that_are_no_text_of_one_line(client: QueueClient, url: str) -> None:
    names = {line.removeprefix("plain,") for line in completed("peek ", url).stdout.splitlines()}
    assert names == {info.name for info in client.list_queues()} - {HOSTILE}


@pytest.mark.parametrize(
    ("words", "verbs"),
    [("broker s", ["start", "status", "stop"]), ("broker sto", ["stop"]), ("broker --store-", ["--store-timeout"]),
     ("broker --store x s", []), ("broker stop --ti", ["--timeout"]), ("queue cr", ["create"])],
)  # fmt: skip
def test_completion_knows_the_verbs(words: str, verbs: list[str], url: str) -> None:
    assert completed(words, url).stdout.split() == [f"plain,{verb}" for verb in verbs]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_has_a_script(shell: str) -> None:
    assert "_OPENDATA_QUEUE_COMPLETE" in run_script(_OPENDATA_QUEUE_COMPLETE=f"{shell}_source").stdout


def test_a_broker_that_is_run_by_hand(tmp_path: Path, started: Children) -> None:
    broker = ServedBroker(tmp_path, "--store", f"file://{tmp_path}/s", "--listen", "tcp:127.0.0.1:0")
    started.add(broker)
    url = f"opendata://127.0.0.1:{broker.port}"
    assert run("queue", "create", "q", url=url).returncode == 0
    assert json.loads(run("queue", "list", "--json", url=url).stdout)[0]["name"] == "q"
    told = run("broker", "stop", url=url)
    assert told.returncode == 1
    assert "kill -TERM" in told.stderr
    assert run("broker", "stop", str(tmp_path / "s")).returncode == 0
    assert broker.wait(60) == 0
    assert run("queue", "list", url=url).returncode == 3


def test_a_folder_without_a_store_is_named_as_that(tmp_path: Path) -> None:
    found = run("queue", "list", url=str(tmp_path / "typo"))
    assert found.returncode == 3
    assert "there is no store: check the path" in found.stderr


def test_a_folder_that_can_not_be_read_is_not_taken_for_one_without_a_store(
    tmp_path: Path, invoke: Callable[..., Any]
) -> None:
    (tmp_path / "default" / "manifest").mkdir(parents=True)
    tmp_path.chmod(0o700 if os.geteuid() == 0 else 0)
    assert invoke("send", "q", "x", "--url", "/no/such/store").exit_code == 1, "what it needs is imported"
    with unprivileged():
        told = invoke("send", "q", "x", "--url", str(tmp_path))
    tmp_path.chmod(0o700)
    assert told.exit_code == 1
    assert told.stderr == f"Error: {tmp_path}: Permission denied\n"


def test_explain_sees_typed_headers_as_a_publish_stores_them(invoke: Callable[..., Any]) -> None:
    assert invoke("filter", "explain", "--filter", "ok = TRUE", "-H", "ok:=true").exit_code == 0
    assert invoke("filter", "explain", "--filter", "ok IS NULL", "-H", "ok:=null").exit_code == 0
    assert invoke("filter", "explain", "big", "-H", "amount:=150").exit_code == 0


def test_messages_are_found_by_a_header_that_is_given_as_it_was_sent(invoke: Callable[..., Any]) -> None:
    found = json.loads(invoke("messages", "-H", "amount:=100", "--json").stdout)
    assert [one["headers"]["amount"] for one in found["items"]] == ["100"]


def test_headers_are_shown_as_messages_finds_them(client: QueueClient, invoke: Callable[..., Any]) -> None:
    client.create("told")
    id = client.send("told", "x", {"ok": True, "none": None, "nested": {"a": [1, "ä"]}, "n": 1.5, "text": "True"})
    one = invoke("message", str(id)).stdout
    for line in ("ok: true", "none: null", 'nested: {"a": [1, "ä"]}', "n: 1.5", "text: True"):
        assert f"header {line}\n" in one
    assert "ok=true none=null nested=" in invoke("peek", "told").stdout
    for given in ("ok=true", "n=1.5", "text=True"):
        assert json.loads(invoke("messages", "-H", given, "-q", "told", "--json").stdout)["items"][0]["id"] == id


def test_a_decompression_bomb_is_not_displayed_and_can_be_saved(
    client: QueueClient, invoke: Callable[..., Any], tmp_path: Path
) -> None:
    bomb = zlib.compress(b"[" + b"{}," * 3_000_000 + b"{}]")
    client.create("bombs")
    id = client.send("bombs", bomb, {"compression": "application/x-gzip"})
    one = invoke("message", str(id)).stdout
    assert "body: (The body is too large to display: its " in one
    assert "Save it and decompress it yourself with `pigz -dz`." in one
    assert "too large to display" in invoke("peek", "bombs", "--full").stdout
    for words in (("message", str(id)), ("peek", "bombs")):
        found = json.loads(invoke(*words, "--json").stdout)
        body = found.get("message", found)["body"]
        assert base64.b64decode(body["base64"]) == bomb
    assert invoke("message", str(id), "--save", str(tmp_path / "body")).exit_code == 0
    assert (tmp_path / "body").read_bytes() == bomb


def test_what_is_nested_deep_is_displayed_in_part(client: QueueClient, invoke: Callable[..., Any]) -> None:
    value: Any = 1
    for _ in range(300):
        value = [value]
    client.create("deep")
    id = client.send("deep", value, {"nested": value})
    assert "nested more than 100 levels deep" in invoke("message", str(id)).stdout
    found = json.loads(invoke("message", str(id), "--json").stdout)["message"]
    assert "base64" in found["body"]
    assert "…" in json.dumps(found["headers"], ensure_ascii=False)


def test_top_goes_on_when_its_broker_was_restarted(store_folder: Path) -> None:
    words = [str(COMMAND), "queue", "top", "--interval", "0.1", "--json", "--url", str(store_folder)]
    with QueueClient(f"opendata://{store_folder}") as client:
        client.create("first")
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as top:
            assert top.stdout is not None
            try:
                assert "first" in top.stdout.readline()
                EmbeddedBroker(store_folder).kill()
                client.create("second")  # starts a broker
                assert any("second" in line for line in top.stdout)
            finally:
                top.terminate()


def test_a_broker_is_run_on_a_plain_folder_of_any_name(tmp_path: Path, started: Children) -> None:
    folder = tmp_path / "odd #%41 name"
    broker = ServedBroker(tmp_path, "--store", str(folder), "--listen", "tcp:127.0.0.1:0")
    started.add(broker)
    assert run("queue", "create", "q", url=f"opendata://127.0.0.1:{broker.port}").returncode == 0
    assert (folder / "broker.pid").exists()
    assert run("broker", "stop", str(folder)).returncode == 0
    assert json.loads(run("store", "stats", str(folder), "--json").stdout)["queues"].keys() == {"q"}


def test_a_move_into_a_full_queue_says_how_far_it_came_and_goes_on(client: QueueClient, url: str) -> None:
    client.create("many")
    client.create("few", QueueOptions(max_length=3))
    client.send_batch("many", range(5))
    told = run("queue", "move", "many", "few", "--json", url=url)
    assert told.returncode == 5
    assert json.loads(told.stdout) == {
        "source": "many", "target": "few", "moved": 3, "already": 0, "expired": 0, "waiting": 0, "unmatched": 0,
        "is_full": True,
    }  # fmt: skip
    assert "the same command continues when there is room" in told.stderr
    client.purge("few")
    told = run("queue", "move", "many", "few", url=url)
    assert (told.returncode, told.stdout) == (0, "2 messages moved from queue 'many' to 'few'\n")
