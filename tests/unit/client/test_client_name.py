"""The name of a process's clients."""

from __future__ import annotations

import os

import pytest

from kombu_opendata.client import connection_options
from kombu_opendata.client.connection_options import MAX_NAME_BYTES, default_name, name_process


def test_clients_are_named_by_host_and_process_or_as_the_process_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_options, "_process_name", "")
    assert default_name().endswith(f":{os.getpid()}")
    name_process("w1@host")
    assert default_name() == "w1@host"


@pytest.mark.parametrize("name", ["n" * 300, "é" * 200, "x" + "é" * 200, "\udcff" * 300])
def test_a_long_or_broken_name_is_cut_to_what_a_broker_takes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(connection_options, "_process_name", "")
    name_process(name)
    assert MAX_NAME_BYTES - 1 <= len(default_name().encode()) <= MAX_NAME_BYTES
