"""Publishes that are sent without waiting for each confirmation; their confirmations are awaited together.

Each publish keeps its number and its frame until it is answered, so a resume sends the unanswered ones again, in order,
and the broker stores each once. A publish that fails is put on a list of *failures*, whose owner (the connection, or a
batch) raises them. If no caller is left, they are logged with the ids of their tasks.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable
from functools import partial

from ...errors import ConnectionLost, FailedPublish, OpenDataError
from ...protocol.messages import Publish
from ..socket.framed_socket import FramedSocket
from .session import ClientSession
from .session_io import SessionIO
from .unconfirmed import PublishInFlight, publish_failed

log = logging.getLogger(__name__)

#: limit for bytes in flight on one connection; further publishes wait
MAX_BYTES = 8 << 20
#: shortest time between two reads of confirmations by publishes: a read costs a quarter of the transport's part of one
_READ_SECONDS = 0.002


class PublishPipeline:
    """Pipelined publishes of one session.

    Attributes:
        failures: failed publishes outside of batches that were not reported yet.
    """

    #: set by a batch that counts its publishes in flight
    count_in_flight: Callable[[int], object] | None = None

    def __init__(self, session: ClientSession, io: SessionIO, *, max_bytes: int = MAX_BYTES) -> None:
        self._session = session
        self._io = io
        self._link = io.link
        self._max_bytes = max_bytes
        self._in_flight = session.in_flight
        self._next_read_at = 0.0
        self.failures: list[FailedPublish] = []
        _pipelines.add(self)

    def publish(
        self,
        message: Publish,
        failures: list[FailedPublish],
        message_id: str = "",
        task_id: str = "",
        count_in_flight: Callable[[int], object] | None = None,
        on_conflict: Callable[[str], object] | None = None,
    ) -> None:
        """Send a message; its confirmation or failure is known after :meth:`confirm_all`.

        The call waits only while ``pipeline_depth`` publishes, or 8 MiB of them, are in flight.

        Args:
            failures: receives an entry if the broker refuses the message, or the reply is lost.
            message_id, task_id: go into that entry.
            count_in_flight, on_conflict: as in :class:`.PublishInFlight`.

        Raises:
            MessageTooLarge: it was not sent.
            ConnectionLost: the connection could not be resumed; the message may be stored nevertheless.
        """
        link = self._link
        try:
            with link.lock:
                self._publish(message, failures, message_id, task_id, count_in_flight, on_conflict)
        finally:
            if self._session.waiting:
                link.reentrance.run()

    def _publish(
        self,
        message: Publish,
        failures: list[FailedPublish],
        message_id: str,
        task_id: str,
        count_in_flight: Callable[[int], object] | None,
        on_conflict: Callable[[str], object] | None,
    ) -> None:
        link, session, in_flight = self._link, self._session, self._in_flight
        self._io.check_size(len(message.envelope))
        now = link.clock.monotonic()
        if now >= self._next_read_at or self._is_full:
            self._io.read_available()
            self._next_read_at = now + _READ_SECONDS
            if self._is_full:
                self._make_room()
        link.ensure_open()
        data = session.start_publish(message)
        rid = message.rid
        in_flight.add(
            rid,
            PublishInFlight(
                len(data),
                message.exchange,
                message.routing_key,
                task_id,
                message_id,
                failures,
                count_in_flight,
                on_conflict,
            ),
        )
        _flush_at_exit()
        try:
            self._io.check_frame(data)
            self._io.transmit(data)
        except BaseException:
            session.unanswered.pop(rid, None)
            in_flight.remove(rid)
            raise
        finally:
            self._io.announce_events()

    @property
    def _is_full(self) -> bool:
        in_flight = self._in_flight
        return len(in_flight.by_rid) >= self._link.options.pipeline_depth or in_flight.bytes >= self._max_bytes

    def _make_room(self) -> None:
        in_flight, half = self._in_flight, self._link.options.pipeline_depth // 2
        while len(in_flight.by_rid) > half or in_flight.bytes > self._max_bytes // 2:
            self._io.pump()

    def confirm_all(self, timeout: float | None = None) -> None:
        """Wait until no publish is in flight; those that failed are on their lists.

        If the connection can't be resumed, all of them have failed; they may be stored nevertheless.

        Raises:
            socket.timeout: some are still in flight.
        """
        with self._link.reentrance, self._link.lock:
            deadline = None if timeout is None else self._link.clock.monotonic() + timeout
            try:
                while self._in_flight.by_rid:
                    self._io.pump(deadline)
            except OpenDataError as exc:
                self._session.fail_publishes(exc)
            finally:
                self._io.announce_events()

    def read_confirmations(self) -> FramedSocket | None:
        """Process the confirmations that have arrived; return the socket on which further ones are expected, or None.

        If the connection can't be resumed, all publishes in flight have failed; they may be stored nevertheless.
        """
        link = self._link
        with link.reentrance, link.lock:
            current = None
            try:
                self._io.check_alive()
                current = link.ensure_open()
            except OpenDataError as exc:
                self._session.fail_publishes(exc)
            self._io.announce_events()
            return current if self._in_flight.by_rid else None

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every publish is durable.

        Raises:
            PublishFailed: some are not durable, or may not be; ``failed`` lists them all.
            socket.timeout: not all of them were answered in time.
        """
        self._link.reentrance.check()
        with self._link.reentrance, self._link.lock:
            self.confirm_all(timeout)
            self.raise_failures()

    def raise_failures(self, more: str = "") -> None:
        """Raise PublishFailed if publishes have failed since the last call."""
        if self.failures:
            failed = list(self.failures)
            self.failures.clear()  # publishes still in flight refer to this list
            raise publish_failed(failed, more)

    def close(self) -> None:
        """Wait ``close_timeout`` for the publishes in flight; mark the remaining ones as failed."""
        if self._in_flight.by_rid:
            try:
                self.confirm_all(self._link.options.close_timeout)
            except TimeoutError as exc:
                self._session.fail_publishes(ConnectionLost(f"not confirmed when the connection was closed: {exc}"))

    def log_failures(self) -> None:
        """Log the failures as soon as the lock is free: no caller is left to raise them to."""
        if self.failures:
            self._link.reentrance.later(partial(log.error, "%s", publish_failed(list(self.failures))))
            self.failures.clear()

    def flush_at_exit(self) -> None:
        """Wait for the publishes in flight at the end of the process, and log failed ones."""
        patience = self._link.options.reconnect_timeout
        in_flight = self._in_flight.by_rid
        if self._link.is_closed or not in_flight and not self.failures:
            return
        if not self._link.lock.acquire(timeout=patience):
            log.error("%d publishes were not confirmed when the process ended", len(in_flight))
            return
        owners = {id(publish.failures): publish.failures for publish in in_flight.values()}
        try:
            self.confirm_all(patience)
        except TimeoutError as exc:
            self._session.fail_publishes(ConnectionLost(f"not confirmed when the process ended: {exc}"))
        finally:
            self._link.lock.release()
        for failures in owners.values():
            if failures is not self.failures and failures:
                log.error("%s", publish_failed(failures))
        with self._link.reentrance:
            self.log_failures()


# ------------------------------------------------------------ process exit
_pipelines: weakref.WeakSet[PublishPipeline] = weakref.WeakSet()
_registered_in = 0  # process id


def _flush_at_exit() -> None:
    """Register :func:`flush_all` for the end of this process, also if multiprocessing forked it."""
    global _registered_in
    pid = os.getpid()
    if _registered_in != pid:
        if not _registered_in:
            atexit.register(flush_all)  # a forked child inherits it
        _registered_in = pid
        for name in ("multiprocessing.util", "billiard.util"):  # their children skip atexit
            if name in sys.modules:
                sys.modules[name].Finalize(None, flush_all, exitpriority=0)


def flush_all(**_kwargs: object) -> None:
    """Wait until this process's publishes are confirmed, and log those that are not."""
    for pipeline in list(_pipelines):
        pipeline.flush_at_exit()
