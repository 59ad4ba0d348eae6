"""The broker's log, as a machine reads it, and what an operator finds in it."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.errors import AccessRefused, StoreUnwritable

from ...support.broker import EmbeddedBroker
from ...support.kombu_client import connected, declare, refused, send
from ...support.processes import wait_until
from ...support.raw import RawClient
from ...support.served import COMMAND
from ...support.users import user_table, write_users
from .conftest import Serve


def lines(path: Path) -> list[dict[str, Any]]:
    """Every line is an object."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_line(path: Path, text: str) -> dict[str, Any]:
    """The first line whose message has this text."""

    def found() -> list[dict[str, Any]]:
        return [line for line in lines(path) if text in line["message"]]

    wait_until(found, 60, lambda: f"{text!r} in:\n{path.read_text()}")
    return found()[0]


def test_from_start_to_end(serve: Serve, store_folder: Path) -> None:
    served = serve("--log-format", "json", "--heartbeat", "5")
    with connected(f"opendata://127.0.0.1:{served.port}") as connection:
        channel = connection.channel()
        declare(channel, "gone")
        send(channel, "gone", "x", "y")
        channel.queue_delete("gone")
    assert served.terminate() == 0
    found = lines(served.log)
    start = found[0]
    assert start["message"].startswith(
        f"kombu-opendata {version('kombu-opendata')} (SlateDB {version('slatedb')}, Python "
    )
    assert f"starts on file://{store_folder}/store: listen=" in start["message"]
    assert "heartbeat=5," in start["message"]
    assert "log-format=json" in start["message"]
    deleted = next(line for line in found if "deleted" in line["message"])
    assert deleted["message"].startswith("anonymous (client '")
    assert deleted["message"].endswith(") deleted queue 'gone', with 2 messages")
    assert deleted["logger"] == "kombu_opendata.audit"
    assert (deleted["queue"], deleted["instance"], deleted["level"]) == ("gone", "default", "INFO")
    assert found[-1]["message"] == "stopped: SIGTERM"


def test_moves_are_in_the_audit_log(serve: Serve) -> None:
    served = serve("--log-format", "json")
    with QueueClient(f"opendata://127.0.0.1:{served.port}", name="clerk") as client:
        for name in ("from", "to"):
            client.create(name)
        client.send_batch("from", "abc")
        client.copy_messages("from", "to", limit=1)
        client.move_messages("from", "to")
    copied, moved = wait_line(served.log, "copied"), wait_line(served.log, "moved")
    assert copied["message"] == "anonymous (client 'clerk') copied 1 waiting messages from 'from' to 'to'"
    assert moved["message"] == "anonymous (client 'clerk') moved 2 waiting messages from 'from' to 'to'"
    assert (moved["logger"], moved["queue"], moved["instance"]) == ("kombu_opendata.audit", "from", "default")


def test_text_is_as_it_was(serve: Serve) -> None:
    served = serve()
    assert served.terminate() == 0
    for line in served.log.read_text().splitlines():
        assert line[4:5] == "-"
        assert line[23:].startswith(" INFO kombu_opendata.broker."), line


def test_a_level_leaves_out_what_is_below(serve: Serve) -> None:
    served = serve("--log-level", "error")
    assert served.terminate() == 0
    assert served.log.read_text() == ""


def test_a_client_that_is_refused_again_and_again(serve: Serve, store_folder: Path) -> None:
    users = store_folder / "users"
    write_users(users, user_table("me", "right"))
    served = serve("--log-format", "json", "--users", str(users))
    for _ in range(8):
        assert isinstance(refused(f"opendata://me:wrong@127.0.0.1:{served.port}"), AccessRefused)
    line = wait_line(served.log, "was refused")
    assert (line["level"], line["code"]) == ("WARNING", "access_refused")
    assert "user 'me' is unknown or the secret is wrong" in line["message"]

    def counted() -> int:
        said = [line["message"] for line in lines(served.log)]
        more = sum(int(text.split()[0]) for text in said if "more of this in 10 s: a client" in text)
        return more + sum(bool(text.startswith("a client was refused (")) for text in said)

    assert served.terminate() == 0
    assert counted() == 8, "those of the last seconds are logged at its end"
    assert "wrong@" not in served.log.read_text()


def test_a_name_can_not_forge_a_line(serve: Serve, store_folder: Path) -> None:
    served = serve("--log-format", "json")
    evil = 'x\n{"level": "CRITICAL", "message": "all is lost"}\n'
    with RawClient(f"{store_folder}/by-hand.sock") as raw, pytest.raises(AssertionError):
        raw.hello(name=evil, instance="no such instance")
    wait_line(served.log, "was refused")
    assert "all is lost" not in {line["message"] for line in lines(served.log)}


def test_slow_commits(serve: Serve) -> None:
    served = serve("--log-format", "json", "--slow-commit", "0.0000001")
    with connected(f"opendata://127.0.0.1:{served.port}") as connection:
        declare(connection.channel(), "q")
    line = wait_line(served.log, "commits were slow, the slowest took")
    assert (line["level"], line["instance"]) == ("WARNING", "default")


def test_why_it_did_not_start(serve: Serve, store_folder: Path) -> None:
    served = serve("--log-format", "json")
    again = serve("--log-format", "json")
    assert again.wait(60) == 1
    (line,) = lines(served.log)[-1:]
    assert (line["level"], line["code"]) == ("ERROR", "store_in_use")


def test_a_broker_that_fails_says_so_in_one_line(serve: Serve, store_folder: Path) -> None:
    served = serve("--log-format", "json")
    with connected(f"opendata://127.0.0.1:{served.port}"):
        (store_folder / "store").rename(store_folder / "moved")
        assert served.wait(60) == 1
    assert lines(served.log)[-1]["level"] == "CRITICAL"


@pytest.mark.parametrize("options", [("--log-format", "yaml"), ("--log-level", "LOUD"), ("--slow-commit", "0")])
def test_options_that_are_none(store_folder: Path, options: tuple[str, ...]) -> None:
    command = [str(COMMAND), "broker", "--store", f"file://{store_folder}/s", "--listen", "tcp:127.0.0.1:0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"Error: {options[0]}: '" in ended.stderr


def test_broker_log_of_a_folder(broker_url: str, broker: EmbeddedBroker) -> None:
    with connected(broker_url, broker_options={"log_format": "json", "log_level": "INFO"}):
        pass
    broker.terminate()
    assert lines(broker.log)[-1]["message"] == "stopped: SIGTERM"


def test_an_error_at_the_start_is_one_line_too(broker_url: str, broker: EmbeddedBroker, store_folder: Path) -> None:
    (store_folder / "default").write_text("in the way")
    assert isinstance(refused(broker_url, broker_options={"log_format": "json"}), StoreUnwritable)
    wait_until(lambda: lines(broker.log)[-1].get("code") == "store_unwritable", 60, broker.log.read_text)
