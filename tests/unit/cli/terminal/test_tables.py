"""Tables on terminals that are too narrow for them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kombu_opendata.cli.queues.queues import COLUMNS
from kombu_opendata.cli.terminal.output import local
from kombu_opendata.cli.terminal.tables import cut_middle, print_table

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
    assert narrow.err == "the terminal is too narrow to show: acked/s, sent/s, consumers; --json has everything\n"


def test_long_texts_are_folded_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table([("id", True), ("name", False)], [(1_234_567, "x" * 30)], none="none")
    out = capsys.readouterr().out
    assert "1,234,567" in out
    assert out.count("x") == 30


def test_times_are_never_folded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    at = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)
    columns = [("id", True), ("received", False), ("attempts", True), ("body", False)]
    monkeypatch.setenv("COLUMNS", "60")
    print_table(
        columns, [(7, at, 1, "word " * 20), (8, None, 1, "")], none="none", spare=("attempts", "no such column")
    )
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
        ("a\x1bb", 20, r"a\x1bb"),
    ],
)
def test_a_long_name_keeps_both_ends(name: str, width: int, shown: str) -> None:
    assert cut_middle(name, width) == shown
