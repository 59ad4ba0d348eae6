"""Progress of long work on a terminal."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from kombu_opendata.cli.progress import bar, watched


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace stderr by a terminal, during the test: pytest replaces it between the phases of a test."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_a_bar_has_its_label_without_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with bar("copy \x07[red]") as update:
        update(3, 7)
    assert r"copy \x07[red]" in terminal.getvalue()


def test_work_is_measured_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    is_measured = threading.Event()

    def measure() -> tuple[int, int | None]:
        is_measured.set()
        return 1, None

    assert watched("work", lambda: is_measured.wait(60), measure)
    assert "work" in terminal.getvalue()


def test_an_error_of_the_work_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal_of(monkeypatch)

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        watched("work", fail, lambda: (0, 1))


def test_nothing_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("copy") as update:
        update(1, 2)
    assert watched("work", lambda: 5, lambda: (0, 1)) == 5
    assert capsys.readouterr().err == ""
