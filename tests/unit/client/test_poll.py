"""Waiting for descriptors, with the system's poll and without it."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from kombu_opendata.client.socket.framed_socket import Waker
from kombu_opendata.client.socket.poll import poll


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture(params=["poll", "select"], autouse=True)
def _system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eventlet removes ``select.poll``."""
    if request.param == "select":
        monkeypatch.delattr(select, "poll")


def test_nothing_to_read(pair: tuple[socket.socket, socket.socket]) -> None:
    assert not poll((pair[0].fileno(),), (), 0.01)


def test_something_to_read(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].send(b"x")
    assert poll((pair[0].fileno(),), (), None)


def test_room_to_write(pair: tuple[socket.socket, socket.socket]) -> None:
    fd = pair[0].fileno()
    assert poll((fd,), (fd,), 5)


def test_a_waker_ends_the_wait_once(pair: tuple[socket.socket, socket.socket]) -> None:
    waker, fd = Waker(), pair[0].fileno()
    waker.clear()
    waker.wake()
    waker.wake()
    assert poll((fd, waker.fd), (), 5)
    waker.clear()
    assert not poll((fd, waker.fd), (), 0)
