"""Headers and ids on the command line."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner

from kombu_opendata.cli.option_types import header_choices, headers_of, moment_of
from kombu_opendata.cli.root import main

TOO_HIGH = str(1 << 63)


def test_headers_to_look_for_may_be_json_values_as_those_to_send() -> None:
    assert header_choices(["n:=30", "n=x", "ok:=true"]) == {"n": [30, "x"], "ok": [True]}
    assert headers_of(["n:=30"]) == {"n": 30}


@pytest.mark.parametrize("given", ["n:=null", "n:=[1]", 'n:={"a": 1}'])
def test_what_no_header_is_stored_as_can_not_be_looked_for(given: str) -> None:
    with pytest.raises(click.UsageError, match="can't search for"):
        header_choices([given])


def test_the_error_says_what_was_wrong() -> None:
    with pytest.raises(click.UsageError, match="can't read the argument 'x'"):
        headers_of(["x"], "argument")


@pytest.mark.parametrize(
    "words",
    [
        ("message", TOO_HIGH),
        ("messages", "--id", TOO_HIGH),
        ("attempts", "--id", TOO_HIGH),
        ("filter", "explain", "q", "--id", TOO_HIGH),
        ("failed", "archive", "q", "--id", TOO_HIGH),
        ("done", "delete", "q", "--id", TOO_HIGH),
        ("store", "inspect", "--message", TOO_HIGH),
    ],
)
def test_an_id_that_no_message_can_have_is_a_wrong_command_line(words: tuple[str, ...]) -> None:
    found = CliRunner().invoke(main, words, env={"OPENDATA_QUEUE_URL": "/nowhere"})
    assert found.exit_code == 2, found.output
    assert "9223372036854775807" in found.output


@pytest.mark.parametrize(
    "line",
    [
        "binding create q x -a nothing",
        "binding delete q x -a a:=NaN",
        "queue alter q nothing",
        "queue alter q --filter x>",
        "queue move q r --where x>",
        "queue delete q",
        "queue purge q",
        "messages -H nothing",
        "messages -H n:=null",
        "messages --limit 1001",
        "messages --next a --prev b",
        "attempts --prev b --next a",
        "failed list --archived --kind failed",
        "failed list --id 1 --id x",
        "failed archive q --where x>",
        "failed delete q --all",
        "done delete q --all",
        "send q {x --as json",
        "send q x --file /dev/null",
        "send q x --file /dev/null --lines",
        "filter explain --filter x> --id 3",
        "web --listen 127.0.0.1:x",
        "web --listen 127.0.0.1:99999",
    ],
)
def test_usage_errors_come_before_a_connection(line: str) -> None:
    found = CliRunner().invoke(main, line.split(), env={"OPENDATA_QUEUE_URL": "opendata://127.0.0.1:1"})
    assert found.exit_code == 2, found.output


@pytest.mark.parametrize(("text", "second"), [("now", 7), ("2s", 5), ("2026-11-21T09:30:07.123999Z", 7)])
def test_a_moment_has_whole_milliseconds(text: str, second: int) -> None:
    now = datetime(2026, 11, 21, 9, 30, 7, 123_999, tzinfo=UTC)
    assert moment_of(text, now) == datetime(2026, 11, 21, 9, 30, second, 123_000, tzinfo=UTC)
