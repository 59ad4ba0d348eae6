"""Targets of the wire protocol: the broker's own connections in this process, without a socket."""

from __future__ import annotations

import asyncio
import random as randomness
import tempfile
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kombu_opendata.broker.access.users_file import UsersFile
from kombu_opendata.broker.process.server import Server
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.broker.wire.logins import Logins
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import PREAMBLE, PREAMBLE_BYTES, FrameReader, broker_messages, frame
from kombu_opendata.protocol.messages import ClientMessage
from kombu_opendata.protocol.queue_arguments import KNOWN
from kombu_opendata.storage.engine_settings import EngineSettings

from ..support.logged_errors import LoggedErrors
from ..support.peer_transport import PeerTransport
from ..support.raw import publish
from .target import Target

SECRET_HASH = "$argon2id$v=19$m=65536,t=3,p=4$MTIzNDU2Nzg$LZ0+KkSxNTJzqOCiPfTr0ybrBwPFsHNcdHTJKhtS5vo"
USERS = f'[users.u]\nsecret = "{SECRET_HASH}"\n[users.u.instances.default]\nwrite = ".*"\nread = "^q"\n'
#: messages that end the broker
_ENDING = (m.HandOver,)
_PING = 0x7FFF_FFF1
_WAIT_SECONDS = 20.0


class _Wire(Target):
    renewed_after = 1000

    def open(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="odq-fuzz-")
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._errors: list[BaseException] = []
        self._log = LoggedErrors(self._errors.append).__enter__()
        self._loop.set_exception_handler(self._note)
        self._runner.run(self._begin(Path(self._temporary.name)))

    async def _begin(self, folder: Path) -> None:
        users = folder / "users.toml"
        users.write_text(USERS)
        users.chmod(0o600)
        settings = BrokerSettings(
            store=f"file://{folder}/store",
            session_grace_seconds=0.01,
            users=UsersFile(users) if self.has_users else None,
            engine=EngineSettings(sync=False, journal_segment_bytes=256 << 10),
        )
        self.server = Server(settings)
        if settings.users is not None:
            self.server.logins = Logins(settings.users, self._loop.time, lambda _hash, secret: secret == "secret")
        self._serving = asyncio.create_task(self.server.run())
        await self.server.instances.get("default")

    has_users = False

    def close(self) -> None:
        async def end() -> None:
            self.server.stop("the end of the run")
            await self._serving

        self._runner.run(end())
        self._runner.close()
        self._log.__exit__(None, None, None)
        self._temporary.cleanup()

    def _note(self, _loop: object, context: dict[str, Any]) -> None:
        self._errors.append(context.get("exception") or RuntimeError(context["message"]))

    def run(self, data: bytes) -> None:
        self._runner.run(self._connect(data))
        if self._errors:
            error = self._errors[0]
            self._errors.clear()
            raise error

    async def _connect(self, data: bytes) -> None:
        protocol = self.server.connection(self.server.connections.admission.take("", "a stranger"))
        transport = PeerTransport(protocol)
        protocol.connection_made(transport)
        try:
            await self.speak(transport, protocol.data_received, data)
        finally:
            if not transport.is_closing():
                transport.close()
            await asyncio.sleep(0)

    async def speak(self, transport: PeerTransport, send: Callable[[bytes], None], data: bytes) -> None:
        """Be the client of a connection."""
        raise NotImplementedError


async def _turns(transport: PeerTransport, count: int) -> None:
    """Let the broker work on, and wait while it does not read."""
    for _ in range(count):
        await asyncio.sleep(0)
    if not transport.reading.is_set():
        await asyncio.wait_for(transport.reading.wait(), _WAIT_SECONDS)


class WireBeforeLogin(_Wire):
    """Bytes of a connection, in pieces as long as the first byte says; 0 is one piece."""

    name = "wire-before-login"
    has_users = True
    tokens = ("ODQ\\x00\\x01\\x00\\x00\\x00", "secret", "default", "u", "\\x16\\x03")

    def seeds(self) -> list[bytes]:
        hellos = [
            m.Hello(1, b"s" * 16, "n", user="u", secret="secret"),
            m.Hello(1, b"s" * 16, "n", user="u", secret="wrong"),
            m.Hello(1, b"s" * 16, "n", "other", "u", "secret", True, heartbeat_ms=1000, resume_follows=True),
            m.Hello(1, b"s" * 16, "n", user="u", secret="secret", held=[(1, "q", 1, 1)], settles=[(1, "q", 1, 1)]),
        ]
        resume = frame(m.Resume(2, [(1, "q", 1, 1)], [(1, "q", 1, 1)]))
        whole = [PREAMBLE + frame(hello) + resume for hello in hellos]
        return [b"\0" + each for each in whole] + [b"\5" + whole[0], b"\0GET / HTTP/1.1\r\n\r\n", b"\0\x16\x03\x01"]

    async def speak(self, transport: PeerTransport, send: Callable[[bytes], None], data: bytes) -> None:
        size = (data[0] if data else 0) or len(data) or 1
        for at in range(1, len(data), size):
            if transport.is_closing():
                return
            send(data[at : at + size])
            await _turns(transport, 3)
        await _turns(transport, 10)


class Wire(_Wire):
    """Frames of a client that has logged in, each behind its length in two bytes.

    An empty one is not sent: those from there to the next empty one arrive together.
    """

    name = "wire"
    tokens = (*(argument.name for argument in KNOWN), "q", "amq.topic", "x-match", "reply-to", "default")

    def open(self) -> None:
        super().open()
        self._samples = samples()

    def seeds(self) -> list[bytes]:
        before = [m.DeclareQueue(2, "q", True, False, False, {}, False), publish("q", 1)]
        consumed = [*before, m.Consume(3, 1, "t", "q", False, False, {}), m.Credit(1, 9), m.Settle(1, 0, 1, [])]
        several = [[*before, each] for each in samples()] + [consumed]
        encoded = [list(map(msgspec.msgpack.encode, messages)) for messages in several]
        together = map(msgspec.msgpack.encode, [m.Settle(1, 0, 1, [("q", 1, 1)]), *map(m.GetStatus, range(5, 14))])
        return list(map(pack, (*encoded, [*encoded[-1], b"", *together])))

    async def speak(self, transport: PeerTransport, send: Callable[[bytes], None], data: bytes) -> None:
        send(PREAMBLE + frame(m.Hello(1, b"s" * 16, "n")))
        await _turns(transport, 3)
        await self._reply(transport, 1)
        held, are_joined = b"", False
        for body in unpack(data):
            if transport.is_closing():
                return
            if not body:
                are_joined = not are_joined
            elif not _is_ending(body):
                held += len(body).to_bytes(4, "little") + body
            if held and not are_joined:
                send(held)
                held = b""
                await _turns(transport, 3)
        if not transport.is_closing():
            send(held + frame(m.Ping(_PING)))
            await self._reply(transport, _PING)

    async def _reply(self, transport: PeerTransport, rid: int) -> None:
        """Wait for the reply to a request, or for the end of the connection."""
        reader, at = FrameReader(broker_messages, 1 << 30), PREAMBLE_BYTES
        end = self._loop.time() + _WAIT_SECONDS
        while not transport.is_closing():
            data, at = bytes(transport.written[at:]), len(transport.written)
            if any(getattr(message, "rid", 0) == rid for message in list(reader.feed(data))):
                return
            await asyncio.sleep(0 if self._loop.time() < end - _WAIT_SECONDS + 0.05 else 0.002)
            assert self._loop.time() < end, "the broker does not answer"

    def mutate(self, data: bytes, random: int) -> bytes | None:
        """Change a field, or the order of the messages."""
        chance = randomness.Random(random)
        if chance.random() < 0.2:
            return None
        bodies = unpack(data) or [b"\x90"]
        at = chance.randrange(len(bodies))
        match chance.randrange(8):
            case 0:
                bodies.insert(at, msgspec.msgpack.encode(chance.choice(self._samples)))
            case 1:
                bodies.append(bodies[at])
            case 2 if len(bodies) > 1:
                del bodies[at]
            case 3 if chance.random() < 0.5:
                bodies.insert(at, b"")
            case _:
                try:
                    fields = msgspec.msgpack.decode(bodies[at])
                    bodies[at] = msgspec.msgpack.encode(_changed(fields, chance))
                except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, OverflowError, RecursionError):
                    return None
        return pack(bodies)


def _is_ending(body: bytes) -> bool:
    tags = {each.__struct_config__.tag for each in _ENDING}
    try:
        return msgspec.msgpack.decode(body)[0] in tags
    except Exception:
        return False


def pack(bodies: list[bytes]) -> bytes:
    return b"".join(len(body).to_bytes(2, "little") + body for body in bodies if len(body) < 1 << 16)


def unpack(data: bytes) -> list[bytes]:
    bodies, at = [], 0
    while at + 2 < len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        bodies.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return bodies


#: values that code may not expect
_ODD: tuple[Any, ...] = (
    0, 1, -1, 2, 255, 256, 65_535, 1 << 31, 1 << 32, (1 << 53) - 1, 1 << 53, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1,
    0.5, float("nan"), float("inf"), "", "q", "amq.topic", "amq.fanout", "amq.headers", "x" * 256, "\0", "é", "#",
    "*.*", "a.#", "a = 1", "first", "now", "default", b"", b"s" * 16, bytes(300), None, True, False, [], {}, [1],
    {"a": 1}, [[1, "q", 1, 1]], {"x-filter": "a = 1"}, {"x-max-length": 1}, {"x-expires": 1}, {"x-match": "any"},
    {"x-single-active-consumer": True}, {"x-start": "first"}, {"x-priority": 1}, {"task": "t", "id": "i", "group": "g"},
)  # fmt: skip


def _changed(value: Any, chance: randomness.Random, depth: int = 0) -> Any:
    """Change one part of a decoded message; the first element is its tag."""
    if isinstance(value, list) and value and (depth == 0 or chance.random() < 0.8):
        at = chance.randrange(0 if depth else min(1, len(value) - 1), len(value))
        copy = list(value)
        if chance.random() < 0.1:
            copy += [chance.choice(_ODD)] * chance.choice((1, 1, 3))
        elif chance.random() < 0.1 and depth:
            del copy[at]
        else:
            copy[at] = _changed(copy[at], chance, depth + 1)
        return copy
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        return {**value, key: _changed(value[key], chance, depth + 1)}
    if isinstance(value, dict) and chance.random() < 0.7:
        return {**value, chance.choice(KNOWN).name: chance.choice(_ODD)}
    if isinstance(value, int) and chance.random() < 0.5:
        return value + chance.choice((-1, 1, 7))
    return chance.choice(_ODD)


# ---------------------------------------------------------------------- samples
def samples() -> list[Any]:
    """Return a message of each kind that a client may send."""
    return [_sample(kind) for kind in typing.get_args(ClientMessage) if kind not in _ENDING]


_PLAIN: dict[Any, Any] = {
    int: 1, str: "q", bytes: b"s" * 16, bool: False, float: 1.0, type(None): None, typing.Any: "a", dict: {}, list: [],
    msgspec.Raw: msgspec.Raw(b"\x01"),
}  # fmt: skip


def _sample(kind: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is typing.Annotated:
        return _sample(inner[0])
    if origin is typing.Literal:
        return inner[0]
    if origin in (typing.Union, types.UnionType):
        return _sample(inner[0])
    if origin in (list, set, frozenset):
        return origin([_sample(inner[0])])
    if origin is dict:
        return {_sample(inner[0]): _sample(inner[1])}
    if origin is tuple:
        return tuple(_sample(part) for part in inner if part is not ...)
    if hasattr(kind, "__members__"):
        return next(iter(kind))
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {name: _sample(of) for name, of in hints.items() if typing.get_origin(of) is not typing.ClassVar}
    return fields if typing.is_typeddict(kind) else kind(**fields)
