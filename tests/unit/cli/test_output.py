"""Tables on terminals that are too narrow for them."""

from __future__ import annotations

import pytest

from kombu_opendata.cli.output import plain, print_table, with_times
from kombu_opendata.cli.queues import COLUMNS

ROW = ("orders", 5_002, 1_000_000, 0, 12_345_678, 0, 0, 460.7, 0.0, "13d 22h")


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_numbers_are_whole_and_names_are_there(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(COLUMNS, [ROW], none="no queues", spare=("acked/s", "sent/s", "consumers"))
    heading, _, line = capsys.readouterr().out.splitlines()
    assert heading.split()[:6] == ["queue", "visible", "delayed", "in", "flight", "done"]
    assert line.split()[:6] == ["orders", "5,002", "1,000,000", "0", "12,345,678", "0"]
    assert line.rstrip().endswith("13d 22h")


def test_spare_columns_go_only_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spare = ("acked/s", "sent/s", "consumers")
    monkeypatch.setenv("COLUMNS", "120")
    print_table(COLUMNS, [ROW], none="no queues", spare=spare)
    wide = capsys.readouterr()
    assert all(name in wide.out for name, _ in COLUMNS)
    assert not wide.err
    monkeypatch.setenv("COLUMNS", "80")
    print_table(COLUMNS, [ROW], none="no queues", spare=spare)
    narrow = capsys.readouterr()
    assert max(map(len, narrow.out.splitlines())) <= 80
    assert narrow.err == "not shown in so narrow a terminal: acked/s, sent/s, consumers; --json has all\n"


def test_long_texts_are_folded_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table([("id", True), ("name", False)], [(1_234_567, "x" * 30)], none="none")
    out = capsys.readouterr().out
    assert "1,234,567" in out
    assert out.count("x") == 30


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
