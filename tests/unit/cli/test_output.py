"""Tables on terminals that are too narrow for them."""

from __future__ import annotations

from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import pytest

from kombu_opendata.cli.output import Table, cut_middle, local, print_table
from kombu_opendata.cli.queues.queues import METRICS

SPARE = ("acked/s", "sent/s", "consumers")
VALUES = ("orders", 5_002, 1_000_000, 0, 12_345_678, 0, 0, 460.7, 0.0, "13d 22h")
#: as that of metrics
TABLE = METRICS._replace(
    columns={name: itemgetter(at) for at, name in enumerate(METRICS.columns)},
    spare=SPARE,
    rows=[VALUES],
)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_numbers_are_whole_and_names_are_there(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(TABLE)
    heading, _, line = capsys.readouterr().out.splitlines()
    assert heading.split()[:6] == ["queue", "ready", "delayed", "in", "flight", "done"]
    assert line.split()[:6] == ["orders", "5,002", "1,000,000", "0", "12,345,678", "0"]
    assert line.rstrip().endswith("13d 22h")


def test_spare_columns_go_only_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    print_table(TABLE)
    wide = capsys.readouterr()
    assert all(name.rstrip("#") in wide.out for name in TABLE.columns)
    assert not wide.err
    monkeypatch.setenv("COLUMNS", "80")
    print_table(TABLE)
    narrow = capsys.readouterr()
    assert max(map(len, narrow.out.splitlines())) <= 80
    assert narrow.err == "the terminal is too narrow to show: acked/s, sent/s, consumers; --json has everything\n"


def test_long_texts_are_folded_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(Table({"id#": "", "name": ""}, none="none", rows=[{"id": 1_234_567, "name": "x" * 30}]))
    out = capsys.readouterr().out
    assert "1,234,567" in out
    assert out.count("x") == 30


def test_times_are_never_folded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    at = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)
    columns: Any = {"id#": "", "received": "", "attempts#": "", "body": ""}
    rows = [
        {"id": 7, "received": at, "attempts": 1, "body": "word " * 20},
        {"id": 8, "received": None, "attempts": 1, "body": ""},
    ]
    monkeypatch.setenv("COLUMNS", "60")
    print_table(Table(columns, none="none", spare=("attempts", "no such column"), rows=rows))
    shown = capsys.readouterr()
    assert local(at) in shown.out
    assert "attempts" not in shown.out
    assert shown.err == "the terminal is too narrow to show: attempts; --json has everything\n"
    assert max(map(len, shown.out.splitlines())) <= 60


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("orders", 6, "orders"),
        ("invoices.europe", 10, "invoi…rope"),
        ("ordersqueue", 8, "orde…eue"),
        ("日本語の待ち行列", 9, "日本…行列"),
    ],
)
def test_a_long_name_keeps_both_ends(name: str, width: int, shown: str) -> None:
    assert cut_middle(name, width) == shown


def test_a_column_without_values_is_left_out_if_it_is_rare(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table({"name": "", "due": "", "priority#": ""}, none="none", rare=("due", "priority"))
    print_table(table.of([{"name": "a", "due": "", "priority": 0}, {"name": "b", "due": "in 1h", "priority": 0}]))
    heading, _, first, second = capsys.readouterr().out.splitlines()
    assert (heading.split(), first.split(), second.split()) == (["name", "due"], ["a"], ["b", "in", "1h"])


def test_a_terminal_has_nothing_to_obey(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table({"name": ""}, none="none", rows=[{"name": "a\x1bb"}]))
    assert r"a\x1bb" in capsys.readouterr().out
