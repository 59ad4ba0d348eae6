"""Reports of tasks: their texts are cut to size, and what is not valid is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kombu_opendata.protocol.task_reports import MAX_ERROR, MAX_TRACEBACK, STATES, TaskReport, TaskState, shortened


def test_the_names_of_states() -> None:
    assert STATES == (
        "", "succeeded", "raised", "retried", "revoked", "timed_out", "rejected", "ignored", "lost",
    )  # fmt: skip
    assert STATES[TaskState.TIMED_OUT] == "timed_out"


@pytest.mark.parametrize("text", ["", "short", "é" * 100, "x" * 200])
def test_a_short_text_stays(text: str) -> None:
    assert shortened(text, 200) == text


def test_a_long_text_keeps_its_ends() -> None:
    cut = shortened("begin " + "ä" * 5000 + " end", MAX_ERROR)
    assert len(cut.encode()) <= MAX_ERROR
    assert cut.startswith("begin ää")
    assert cut.endswith("ää end")
    assert "\n… 5010 characters, cut here …\n" in cut


@pytest.mark.parametrize("limit", [5, 7, 255, MAX_ERROR, MAX_TRACEBACK])
@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_no_text_is_longer_than_its_limit(letter: str, limit: int) -> None:
    for count in (limit // 4, limit // 2, limit, limit + 1, 3 * limit):
        assert len(shortened(letter * count, limit).encode()) <= limit


def test_what_has_no_utf8_form_becomes_question_marks() -> None:
    assert shortened("a\udc80b\ud83dc", 200) == "a?b?c"
    assert shortened("\udc80" * 500, 200).startswith("???")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"state": 0}, "task state 0 is unknown"),
        ({"state": 9}, "task state 9 is unknown"),
        ({"runtime_us": -1}, "a runtime or a process id is out of range"),
        ({"pid": 1 << 32}, "a runtime or a process id is out of range"),
        ({"task": "x" * 256}, "more than 255 bytes"),
        ({"exception": "é" * 128}, "more than 255 bytes"),
        ({"error": "x" * 2049}, "more than 2048 bytes"),
        ({"traceback": "😀" * 4097}, "more than 16384 bytes"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], fault: str) -> None:
    given = {"state": 2, **changes}
    assert fault in TaskReport(**given).fault
    if "state" not in changes:
        assert TaskReport.cut(**given).fault == ""
