"""Parts of large messages: beyond the bound only the oldest is read on, and silent ones go."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kombu_opendata.broker.wire.partial_frames import SILENT_SECONDS, PartialFrames
from kombu_opendata.errors import ProtocolError

MB = 1 << 20


class Reader:
    """A connection; ``socket`` is its end of a pair."""

    def __init__(self) -> None:
        self.socket, self.client = socket.socketpair()
        self.did: list[str] = []

    def pause(self) -> None:
        self.did.append("pause")

    def go_on(self) -> None:
        self.did.append("resume")

    def give_up(self, exc: ProtocolError) -> None:
        self.did.append("give up")


@pytest.fixture
def readers() -> Iterator[list[Reader]]:
    found = [Reader() for _ in range(3)]
    yield found
    for reader in found:
        reader.socket.close()
        reader.client.close()


def test_only_the_oldest_goes_on_beyond_the_bound(readers: list[Reader]) -> None:
    first, second, third = readers
    frames = PartialFrames(lambda: 0.0, 10 * MB)
    frames.note(first, 4 * MB)
    frames.note(second, 4 * MB)
    assert second.did == []
    frames.note(third, 4 * MB)
    frames.note(first, 8 * MB)
    assert (first.did, third.did) == ([], ["pause"])
    frames.forget(first)  # it is complete
    assert third.did == ["pause", "resume"]
    assert frames.total_bytes == 8 * MB


def test_the_silent_ones_go_when_their_memory_is_needed(readers: list[Reader]) -> None:
    first, second, third = readers
    now = 0.0
    frames = PartialFrames(lambda: now, 10 * MB)
    frames.note(first, 4 * MB)
    frames.note(second, 4 * MB)
    now = SILENT_SECONDS + 1
    frames.tick(memory_is_full=False)
    assert first.did == second.did == []  # nobody needs it
    second.client.send(b"more")
    frames.note(third, 4 * MB)
    frames.tick(memory_is_full=False)
    assert (first.did, second.did, third.did) == (["give up"], [], ["pause", "resume"])
