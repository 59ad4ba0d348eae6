"""The log's JSON, and lines that may come too often."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from kombu_opendata.broker.delivery.rate_limited_log import LINES_PER_PERIOD, PERIOD_SECONDS, Notices
from kombu_opendata.broker.process.logs import CONTEXT, JsonFormatter
from kombu_opendata.errors import QueueFull


def formatted(message: str, *args: object, **extra: Any) -> dict[str, Any]:
    exc_info = extra.pop("exc_info", None)
    record = logging.LogRecord("kombu_opendata.x", logging.WARNING, __file__, 1, message, args, exc_info)
    vars(record).update(extra)
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_line_is_one_object() -> None:
    line = formatted("queue %r\nis gone", "ü\x00\ud800", queue="ü", instance="default", irrelevant=1)
    assert line.pop("time")[-1] == "Z"
    assert line == {
        "level": "WARNING", "logger": "kombu_opendata.x", "message": "queue 'ü\\x00\\ud800'\nis gone", "queue": "ü",
        "instance": "default",
    }  # fmt: skip


def test_the_time_is_utc_with_milliseconds() -> None:
    assert formatted("x", created=1_769_385_600.1239)["time"] == "2026-01-26T00:00:00.123Z"


def test_an_exception_brings_its_code_unless_the_line_has_one() -> None:
    try:
        raise QueueFull("full")
    except QueueFull:
        info = sys.exc_info()
    line = formatted("x", exc_info=info)
    assert line["code"] == "queue_full"
    assert line["exception"].startswith("Traceback")
    assert formatted("x", exc_info=info, code="mine")["code"] == "mine"


def test_a_value_that_json_does_not_know_is_shown_as_text() -> None:
    assert formatted("x", session=b"\x00")["session"] == "b'\\x00'"
    assert "session" in CONTEXT


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notices(clock: Clock) -> Notices:
    return Notices(logging.getLogger("test_logs"), clock, instance="default")


def test_of_a_flood_some_lines_and_the_count_are_written(
    clock: Clock, notices: Notices, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number in range(1000):
        notices.say(logging.WARNING, "a client was refused", "refused: %d", number, code="access_refused")
    notices.say(logging.INFO, "another kind", "hello")
    notices.tick()
    assert caplog.messages == [*(f"refused: {number}" for number in range(LINES_PER_PERIOD)), "hello"]
    assert {(vars(r)["instance"], vars(r).get("code")) for r in caplog.records} == {
        ("default", "access_refused"), ("default", None),
    }  # fmt: skip
    caplog.clear()
    clock.now = PERIOD_SECONDS
    notices.tick()
    notices.tick()
    assert caplog.messages == [f"{1000 - LINES_PER_PERIOD} more of this in {PERIOD_SECONDS:g} s: a client was refused"]
    assert caplog.records[0].levelno == logging.WARNING
    for _ in range(LINES_PER_PERIOD + 1):
        notices.say(logging.WARNING, "a client was refused", "refused again")
    assert caplog.messages[-1] == "refused again"
    notices.close()
    notices.close()
    assert caplog.messages[-2:] == ["refused again", f"1 more of this in {PERIOD_SECONDS:g} s: a client was refused"]


def test_counts_are_written_at_once_and_then_once_a_period(
    clock: Clock, notices: Notices, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    notices.add("leases", "%d leases ended", 0)
    for number in (1, 2, 3):
        notices.add("leases", "%d leases ended", number)
    assert caplog.messages == ["1 leases ended"]
    clock.now = PERIOD_SECONDS
    notices.tick()
    notices.tick()
    assert caplog.messages == ["1 leases ended", "5 leases ended"]
