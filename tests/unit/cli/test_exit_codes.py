"""Questions, and how they end."""

from __future__ import annotations

import io
import sys

import click
import pytest
from click.testing import CliRunner

from kombu_opendata.cli import exit_codes
from kombu_opendata.cli.root import main


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
