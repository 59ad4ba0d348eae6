"""Connection of a standby to the active broker, for heartbeats and the planned take-over."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from ...errors import ConnectionLost, OpenDataError, ProtocolError
from ...protocol import messages as m
from ...protocol.framing import HELLO_MAX_FRAME_BYTES, PREAMBLE, PREAMBLE_BYTES, FrameReader, broker_messages, frame
from ...protocol.messages import prove
from .active_record import ActiveRecord

#: intervals without a heartbeat after which the active broker is considered lost
SILENT_INTERVALS = 3
_CONNECT_SECONDS = 1.0
_NONCE_BYTES = 16

#: reads the data that is necessary to open these instances
ReadAhead = Callable[[list[str]], Awaitable[None]]


class ActiveLink(asyncio.Protocol):
    """Connection to the active broker."""

    def __init__(
        self, record: ActiveRecord, id: str, addresses: list[str], role: str, prepare: ReadAhead | None
    ) -> None:
        self._role, self._prepare = role, prepare
        self._preparing: asyncio.Task[None] | None = None
        self._key, self._id, self._addresses = record.key, id, addresses
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._reader: FrameReader[Any] = FrameReader(broker_messages, HELLO_MAX_FRAME_BYTES)
        self._preamble = b""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        #: set when the active broker has proved that it wrote the active record
        self.is_welcome: asyncio.Future[None] = self._loop.create_future()
        #: the TakeOver of the active broker; None if the connection was lost
        self.ended: asyncio.Future[m.TakeOver | None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        proof = prove(self._key, self._role, self._id, self._nonce, self._addresses)
        now_ms, prepares = int(1000 * time.time()), self._prepare is not None
        hello = m.StandbyHello(1, self._id, self._addresses, self._nonce, proof, now_ms, prepares)
        self._transport.write(PREAMBLE + frame(hello))

    def data_received(self, data: bytes) -> None:
        remainder = PREAMBLE_BYTES - len(self._preamble)
        self._preamble += data[:remainder]
        try:
            for message in self._reader.feed(data[remainder:] if remainder else data):
                self._take(message)
        except OpenDataError as exc:
            self._end(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionLost("the active broker closed the connection"))

    def close(self) -> None:
        self._end(ConnectionLost("closed"))

    def _take(self, message: Any) -> None:
        self._heard_at = self._loop.time()
        if isinstance(message, m.StandbyWelcome):
            expected = prove(self._key, "active", self._id, self._nonce, self._addresses)
            if not hmac.compare_digest(message.proof, expected):
                raise ProtocolError("the broker at the active one's address does not read the same store")
            if not self.is_welcome.done():
                self.is_welcome.set_result(None)
                self._beat(message.heartbeat_ms / 1000)
        elif isinstance(message, m.TakeOver) and not self.ended.done():
            self.ended.set_result(message)
        elif isinstance(message, m.Prepare) and self._prepare is not None and self._preparing is None:
            self._preparing = self._loop.create_task(self._get_prepared(self._prepare(message.instances)))
        elif isinstance(message, m.Failed):
            raise ConnectionLost(message.text)

    async def _get_prepared(self, work: Awaitable[None]) -> None:
        await work
        if self._transport is not None:
            self._transport.write(frame(m.Prepared()))

    def _beat(self, seconds: float) -> None:
        """Send a heartbeat, and check for the heartbeats of the active broker."""
        if self._loop.time() - self._heard_at > SILENT_INTERVALS * seconds:
            self._end(ConnectionLost("the active broker is silent"))
        elif self._transport is not None:
            self._transport.write(frame(m.Heartbeat()))
            self._timer = self._loop.call_later(seconds, self._beat, seconds)

    def _end(self, error: OpenDataError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._preparing is not None:
            self._preparing.cancel()
        if not self.is_welcome.done():
            self.is_welcome.set_exception(error)
            self.is_welcome.exception()  # mark the error as retrieved: the future may have no waiter
        if not self.ended.done():
            self.ended.set_result(None)
        if self._transport is not None:
            self._transport.abort()


async def connect(
    record: ActiveRecord,
    id: str,
    addresses: list[str],
    tls: Callable[[], ssl.SSLContext],
    role: str = "standby",
    prepare: ReadAhead | None = None,
) -> ActiveLink | None:
    """Connect to the active broker; None if it can't be reached at any address.

    ``id`` and ``addresses`` are this standby's. ``tls`` creates a context, if the active broker uses TLS. ``role`` is
    ``standby``, or ``successor`` to notify a broker that this one has replaced it. ``prepare`` is called before a
    planned take-over.
    """
    for address in record.addresses if record.key else []:
        link = ActiveLink(record, id, addresses, role, prepare)
        with suppress(OSError, TimeoutError, OpenDataError):
            async with asyncio.timeout(_CONNECT_SECONDS):
                await _open(link, address, tls() if record.tls else None)
                await asyncio.shield(link.is_welcome)
                return link
        link.close()
    return None


async def _open(link: ActiveLink, address: str, tls: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    if address.startswith("/"):
        await loop.create_unix_connection(lambda: link, address)
        return
    host, _, port = address.rpartition(":")
    await loop.create_connection(lambda: link, host.strip("[]"), int(port), ssl=tls)


def link_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return the TLS context for the other broker, which may request the client certificate in a PEM file.

    Both brokers authenticate by the store's key, so the names in certificates are not checked.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context
