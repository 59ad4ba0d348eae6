"""A broker played by hand: a real Unix socket whose every answer the test gives itself."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import PREAMBLE, PREAMBLE_BYTES, FrameReader, client_messages, frame
from kombu_opendata.url import Address

SECONDS = 60
T = TypeVar("T")


class Conversation:
    """The broker's side of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(SECONDS)
        self._reader: FrameReader[Any] = FrameReader(client_messages)
        self._received: deque[Any] = deque()

    def preamble(self, answer: bytes = PREAMBLE) -> bytes:
        data = self.sock.recv(PREAMBLE_BYTES)
        self.sock.sendall(answer)
        return data

    def receive(self, kind: type[T]) -> T:
        """The next message, which must be of this kind."""
        while not self._received:
            data = self.sock.recv(65536)
            assert data, f"the client closed instead of sending {kind.__name__}"
            self._received.extend(self._reader.feed(data))
        message = self._received.popleft()
        assert isinstance(message, kind), message
        return message

    def send(self, *messages: Any) -> None:
        self.sock.sendall(b"".join(frame(message) for message in messages))

    def welcome(
        self,
        *,
        max_message_bytes: int = 1 << 20,
        max_frame_bytes: int = 2 << 20,
        task_outcomes: bool = False,
        run_id: bytes = b"",
        session_known: bool = False,
    ) -> m.Hello:
        """Take the client's Hello and welcome it; a Resume is kept in ``resume``."""
        self.preamble()
        hello = self.receive(m.Hello)
        if hello.resume_follows:
            self.send(m.LoggedIn(hello.rid))
            self.resume = resume = self.receive(m.Resume)
            hello.held, hello.settles = resume.held, resume.settles
        limits = max_frame_bytes, max_message_bytes
        self.send(m.Welcome(hello.rid, "0", *limits, 0, 0, len(hello.held), task_outcomes, run_id, session_known))
        return hello

    def assert_closed_by_client(self) -> None:
        assert not self._received
        assert self.sock.recv(1) == b""

    def close(self) -> None:
        self.sock.close()


class Peer:
    """Listens where an embedded broker would."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(SECONDS)
        self._listener.bind(path)
        self._listener.listen(8)
        self._open: list[Conversation] = []

    def accept(self) -> Conversation:
        conversation = Conversation(self._listener.accept()[0])
        self._open.append(conversation)
        return conversation

    def close(self) -> None:
        self._listener.close()
        for conversation in self._open:
            conversation.close()


class Client:
    """A connection, and a thread to wait in its calls."""

    def __init__(self, connection: BrokerConnection, pool: ThreadPoolExecutor) -> None:
        self.connection = connection
        self._pool = pool

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        return self._pool.submit(function, *args, **kwargs)


@pytest.fixture
def peer(store_folder: Path) -> Iterator[Peer]:
    peer = Peer(str(store_folder / "broker.sock"))
    yield peer
    peer.close()


@pytest.fixture
def new_client(store_folder: Path) -> Iterator[Callable[..., Client]]:
    """Makes clients of the store folder's broker; times are short."""
    made: list[BrokerConnection] = []
    pool = ThreadPoolExecutor(8)

    def make(**options: Any) -> Client:
        settings = {"connect_timeout": 5.0, "reconnect_timeout": 5.0, "close_timeout": 1.0, **options}
        connection = BrokerConnection(Address("embedded", folder=str(store_folder)), Options(**settings))
        made.append(connection)
        return Client(connection, pool)

    yield make
    for connection in made:
        connection.abandon()
    pool.shutdown()


@pytest.fixture
def met(peer: Peer, new_client: Callable[..., Client]) -> tuple[Client, Conversation]:
    """A client and the broker that has just welcomed it."""
    client = new_client()
    connecting = client.start(client.connection.connect)
    conversation = peer.accept()
    conversation.welcome()
    connecting.result(SECONDS)
    return client, conversation
