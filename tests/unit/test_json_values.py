"""Times in reports."""

from __future__ import annotations

from kombu_opendata.json_values import plain, with_times


def test_times_are_moments_wherever_they_are_and_nothing_else_is() -> None:
    report = {
        "at_ms": 1_500,
        "a": {"settled_at_ms": 0, "oldest_at_ms": None},
        "b": [{"ended_at_ms": 1}],
        "headers": {"sent_at_ms": "yesterday"},
        "format_ms": 7,
    }
    assert plain(with_times(report)) == {
        "at": "1970-01-01T00:00:01.500Z",
        "a": {"settled_at": None, "oldest_at": None},
        "b": [{"ended_at": "1970-01-01T00:00:00.001Z"}],
        "headers": {"sent_at_ms": "yesterday"},
        "format_ms": 7,
    }
