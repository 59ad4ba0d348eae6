"""What rights show of an attempt: its errors are contents, as bodies are."""

from __future__ import annotations

import pytest

from kombu_opendata.broker.access.rights import Rights
from kombu_opendata.broker.access.users_format import Patterns
from kombu_opendata.broker.calls.contents import shown_attempt, shown_failure
from kombu_opendata.protocol.messages import AttemptInfo, FailureInfo

ATTEMPT = AttemptInfo(
    "attempt-1", 5, "mine", "worker", 1, 2, 1, "acked", False, False, None, "raised", 2.5, 7, "app.Bad", "4711?",
    "Traceback: 4711",
)  # fmt: skip


def test_who_may_read_the_queue_sees_the_error() -> None:
    assert shown_attempt(Rights("u", "i", Patterns(read="^mine")), ATTEMPT) == ATTEMPT


def test_a_monitor_sees_that_it_failed_and_how_long_it_took() -> None:
    shown = shown_attempt(Rights("u", "i", Patterns(), ["monitor"]), ATTEMPT)
    assert shown is not None
    assert (shown.state, shown.runtime_ms, shown.pid, shown.exception) == ("raised", 2.5, 7, "app.Bad")
    assert (shown.error, shown.traceback) == ("", "")


def test_nobody_else_sees_it() -> None:
    assert shown_attempt(Rights("u", "i", Patterns(read="^other")), ATTEMPT) is None


FAILURE = FailureInfo(
    7, "mail", "acknowledged", "app.send", "t", "raised", "ValueError", "ada@example.org", "w", 1, 1, traceback="Trace…"
)


@pytest.mark.parametrize("readable", ["^mail$", r"^amq\.all$", ".*"])
def test_who_may_read_the_queue_sees_all(readable: str) -> None:
    assert shown_failure(Rights("u", "default", Patterns("", "", readable)), FAILURE) == FAILURE


def test_a_monitor_sees_the_type_but_no_text() -> None:
    shown = shown_failure(Rights("u", "default", Patterns("", "", "^other$"), ["monitor"]), FAILURE)
    assert (shown.error, shown.traceback) == ("", "")
    assert (shown.exception, shown.task, shown.worker) == ("ValueError", "app.send", "w")
