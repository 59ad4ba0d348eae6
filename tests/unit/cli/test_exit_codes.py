"""Questions, and how they end."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kombu_opendata import cli
from kombu_opendata.cli import exit_codes
from kombu_opendata.cli.messages.failure_changes import _in_steps
from kombu_opendata.cli.root import main
from kombu_opendata.protocol.messages import FailuresRetried


@click.command(cls=exit_codes.Command)
def ask() -> None:
    """Something that can't be undone."""
    exit_codes.confirm("Really?", yes=False)


@pytest.mark.parametrize(
    ("ends", "code"), [(KeyboardInterrupt, exit_codes.INTERRUPTED), (EOFError, exit_codes.REFUSED)]
)
def test_ctrl_c_at_a_question_is_an_interruption(
    ends: type[BaseException], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def typed(_prompt: str) -> str:
        raise ends

    monkeypatch.setattr(exit_codes, "can_ask", lambda: True)
    monkeypatch.setattr(click.termui, "visible_prompt_func", typed)
    with pytest.raises(SystemExit) as ended:
        ask.main([])
    assert ended.value.code == code


def test_ctrl_c_while_the_commands_are_loaded_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loading:
        @property
        def main(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "kombu_opendata.cli.root", Loading())
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == exit_codes.INTERRUPTED


def test_ctrl_c_in_a_bulk_tells_the_least_that_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    """The broker finishes the group that it has begun, whose answer the command does not wait for."""

    def work(progress: Callable[[Any], object]) -> None:
        progress(FailuresRetried(0, published=901))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _in_steps("running again", 5000, work)
    assert capsys.readouterr().err == "at least 901 done; the same command continues with the rest\n"


class Terminal(io.StringIO):
    """What has a user behind it."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("ends", "code"), [(KeyboardInterrupt, exit_codes.INTERRUPTED), (EOFError, exit_codes.REFUSED)]
)
def test_ctrl_c_at_a_secret_is_an_interruption(
    ends: type[BaseException], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def typed(_prompt: str) -> str:
        raise ends

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(click.termui, "hidden_prompt_func", typed)
    with pytest.raises(SystemExit) as ended:
        main(["hash-secret"])
    assert ended.value.code == code


def test_no_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_codes, "can_ask", lambda: True)
    assert CliRunner().invoke(ask, input="n\n").exit_code == exit_codes.REFUSED
