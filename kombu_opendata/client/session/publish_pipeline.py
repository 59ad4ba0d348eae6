"""Publishes in flight: sent, and not waited for one by one.

Each keeps its number and its frame until it is answered, so a resume sends what is left again, in order, and the broker
stores it once. A publish that fails is put on a list, its *failures*, which its owner (the connection, or a batch)
raises; where nobody is left to raise it, it is logged with the tasks' ids.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import Any

from ...errors import ConnectionLost, FailedPublish, OpenDataError, PublishFailed
from ...protocol.framing import frame
from ...protocol.messages import Publish
from .requester import Requester
from .stream import InFlight, open_streams

logger = logging.getLogger(__name__)

#: bytes in flight on one connection; whoever publishes more waits
MAX_BYTES = 8 << 20
#: ids that an error or a log line names
_NAMED = 20


class Pipeline(Requester):
    """A requester that publishes without waiting."""

    def publish_later(self, message: Publish, failures: list[FailedPublish], message_id: str = "") -> None:
        """Send a message; what becomes of it is known after :meth:`confirm_all`.

        Waits only while ``pipeline_depth`` publishes, or 8 MiB of them, are in flight.

        Args:
            failures: gets an entry if the broker refuses it, or can't be asked any more.
            message_id: goes into that entry.

        Raises:
            MessageTooLarge: it was not sent.
            ConnectionLost: the connection could not be resumed; it may be stored all the same.
        """
        with self._lock:
            self._check_message(message)
            self.read_available()
            if len(self._in_flight) >= self.options.pipeline_depth or self._in_flight_bytes >= MAX_BYTES:
                self._make_room()
            self._ensure_open()
            self._number(message)
            data = frame(message)
            self._check_frame(data)
            rid = message.rid
            self._unanswered[rid] = data
            self._in_flight[rid] = InFlight(
                len(data), message.exchange, message.routing_key, message.headers.get("id", ""), message_id, failures
            )
            self._in_flight_bytes += len(data)
            _at_exit()
            try:
                self._transmit(data)
            except BaseException:
                self._unanswered.pop(rid, None)
                self._landed(rid)
                raise
            finally:
                self._tell_buffered()

    def _make_room(self) -> None:
        while len(self._in_flight) > self.options.pipeline_depth // 2 or self._in_flight_bytes > MAX_BYTES // 2:
            self._pump()

    def confirm_all(self, timeout: float | None = None) -> None:
        """Wait until no publish is in flight; those that failed are on their lists.

        When the connection can't be resumed, all of them have failed: they may be stored or not.

        Raises:
            socket.timeout: some are still in flight.
        """
        with self._lock:
            deadline = None if timeout is None else self.clock.monotonic() + timeout
            try:
                while self._in_flight:
                    if deadline is not None:
                        self._wait_until(deadline)
                    self._pump()
            except OpenDataError as exc:
                self._give_up_in_flight(exc)
            finally:
                self._tell_buffered()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every publish is durable.

        Raises:
            PublishFailed: some are not, or it is not known; ``failed`` has them all.
            socket.timeout: not all of them were answered in time.
        """
        with self._lock:
            self.confirm_all(timeout)
            self.raise_failures()

    def raise_failures(self, more: str = "") -> None:
        """Raise PublishFailed if publishes have failed since the last time."""
        if self.failures:
            failed = list(self.failures)
            self.failures.clear()  # those still in flight know this list
            raise publish_failed(failed, more)

    def _close_pipeline(self) -> None:
        """What a close can still do for the publishes in flight."""
        if self._in_flight:
            try:
                self.confirm_all(self.options.close_timeout)
            except TimeoutError as exc:
                self._give_up_in_flight(ConnectionLost(f"not confirmed when the connection was closed: {exc}"))

    def log_failures(self) -> None:
        """Nobody is left to raise them to."""
        if self.failures:
            logger.error("%s", publish_failed(self.failures))
            self.failures.clear()

    def _flush_at_exit(self) -> None:
        patience = self.options.reconnect_timeout
        if not self._in_flight and not self.failures:
            return
        if not self._lock.acquire(timeout=patience):
            logger.error("%d publishes were not confirmed when the process ended", len(self._in_flight))
            return
        owners = {id(entry.failures): entry.failures for entry in self._in_flight.values()}
        try:
            self.confirm_all(patience)
        except TimeoutError as exc:
            self._give_up_in_flight(ConnectionLost(f"not confirmed when the process ended: {exc}"))
        finally:
            self._lock.release()
        for failures in owners.values():
            if failures is not self.failures and failures:
                logger.error("%s", publish_failed(failures))
        self.log_failures()


def publish_failed(failed: list[FailedPublish], more: str = "") -> PublishFailed:
    """The error that tells of these."""
    named = ", ".join(entry.task_id or entry.message_id or entry.routing_key for entry in failed[:_NAMED])
    rest = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    return PublishFailed(
        f"{len(failed)} publishes were not confirmed: {named}{rest}; the first: {failed[0].error}{more}", failed=failed
    )


# ------------------------------------------------------------ the end of the process
_registered_in = 0


def _at_exit() -> None:
    """Have :func:`flush_all` run when this process ends, be it one that multiprocessing forked."""
    global _registered_in
    pid = os.getpid()
    if _registered_in != pid:
        if not _registered_in:
            atexit.register(flush_all)  # a forked child inherits it
        _registered_in = pid
        for name in ("multiprocessing.util", "billiard.util"):  # their children skip atexit
            if name in sys.modules:
                sys.modules[name].Finalize(None, flush_all, exitpriority=0)


def flush_all(**_kwargs: Any) -> None:
    """Wait until what this process published is confirmed; what is not, is logged."""
    for stream in open_streams():
        if isinstance(stream, Pipeline):
            stream._flush_at_exit()
