"""What the role monitor shows of a failure: not what the exception says."""

from __future__ import annotations

import pytest

from kombu_opendata.broker.access.file_format import Patterns
from kombu_opendata.broker.access.rights import Rights
from kombu_opendata.broker.calls.dispatch.contents import shown_failure
from kombu_opendata.protocol.messages.failure_messages import FailureInfo

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
