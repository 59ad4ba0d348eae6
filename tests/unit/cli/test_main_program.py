"""Program with which a client starts a folder's broker: errors reach the client that waits."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pytest

from kombu_opendata.cli.__main__ import main


@pytest.fixture
def ready() -> Iterator[tuple[int, int]]:
    pipe = os.pipe()
    yield pipe
    os.close(pipe[0])
    os.close(pipe[1])


def test_wrong_options_are_reported_to_the_client(
    ready: tuple[int, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli", "broker", "--no-such-option", "--ready-fd", str(ready[1])])
    assert main() == 2
    report = json.loads(os.read(ready[0], 4096))
    assert report["code"] == "start_error"
    assert "--no-such-option" in report["text"]
    assert "--no-such-option" in capsys.readouterr().err


def test_a_command_runs_without_a_client(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["cli", "--version"])
    assert main() == 0
    assert "version" in capsys.readouterr().out
