"""Calls that replay, redrive, move, archive and delete messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from ..protocol import messages as m
from ..protocol.log_position import wire_position
from . import checks
from .base import Base
from .checks import Point, Seconds


class Replaying(Base):
    """Calls about messages that were published or settled before."""

    def replay(self, queue: str, start: Point, until: Point = "now", *, where: str = "") -> dict[str, Any]:
        """Route stored messages to a queue again, in the background; return the progress at the start.

        The queue receives the messages that its filter matches, except those in its backlog or in flight. Tasks that
        are done therefore run again. :class:`kombu_opendata.protocol.messages.replay_messages.CursorList` has the
        fields of a progress.

        Args:
            start: the first message: "first", a time with its offset (datetime, or ISO 8601), or a message id.
            until: the message after the last one.
            where: only messages that match this filter.

        Raises:
            PreconditionFailed: a replay into the queue is running already.
            RequestError: the start, the end or the filter is not valid, or the queue is not stored.
        """
        return self.calls.call(m.Replay(0, queue, wire_position(start), wire_position(until), where)).cursor

    def stop_replay(self, queue: str) -> dict[str, Any]:
        """Stop a replay at its current position and return its progress."""
        return self.calls.call(m.Replay(0, queue, "now", stop=True)).cursor

    def replay_progress(self, queues: Iterable[str] = ()) -> list[dict[str, Any]]:
        """Return the progress of the replays of these queues, or of all queues that had one."""
        return self.calls.call(m.Cursors(0, list(queues))).cursors

    def redrive(
        self,
        queue: str,
        target: str = "",
        *,
        where: str = "",
        ids: Iterable[int] | None = None,
        limit: int = 0,
        state: Literal["failed", "archived_failed"] = "failed",
    ) -> m.Redriven:
        """Redrive failed messages of a queue. They keep their ids, and their attempts are reset to 0.

        Other calls are not blocked.

        :meth:`retry_failures` does this for several queues, and also retries tasks that failed after their
        acknowledgement.

        Args:
            target: the queue that receives the messages; by default, their own.
            where: only messages that match this filter.
            ids: only these messages.
            limit: the maximum number of messages; 0 means all.
            state: ``archived_failed`` for messages of :meth:`archive_failed`.

        Returns:
            ``moved``, and the counts that :meth:`move_messages` describes.

        Raises:
            QueuePaused: publishes to the target are paused.
        """
        return self.calls.call_apart(m.Redrive(0, queue, target, where, checks.message_ids(ids), limit, state))

    def move_messages(
        self,
        queue: str,
        target: str,
        *,
        where: str = "",
        ids: Iterable[int] | None = None,
        limit: int = 0,
        states: Iterable[Literal["ready", "available", "delayed"]] = ("ready", "delayed"),
    ) -> m.Moved:
        """Move ready and delayed messages to another queue.

        They keep their ids and delays, and their attempts are reset to 0. Messages in flight stay, and so do messages
        that arrive during the call. Each message moves exactly once, even if the broker is killed. Other calls are not
        blocked.

        Args:
            where: only messages that match this filter.
            ids: only these messages.
            limit: the maximum number of messages; 0 means all.
            states: only messages in one of these states.

        Returns:
            The number of moved messages as ``count``, and ``is_full``, which is True if the target reached its maximum
            length; repeat the call later to move the rest. The other fields count the messages that stayed:

            * ``already``: the target has them.
            * ``expired``: their time to live has ended.
            * ``waiting``: they are dead letters that are not published yet.
            * ``unmatched``: every message of the target must match its filter, and they do not.

        Raises:
            QueuePaused: publishes to the target are paused.
            RequestError: the filter is not valid, a queue is not stored, or both are the same.
        """
        return self._move(queue, target, where, ids, limit, states, copy=False)

    def copy_messages(
        self,
        queue: str,
        target: str,
        *,
        where: str = "",
        ids: Iterable[int] | None = None,
        limit: int = 0,
        states: Iterable[Literal["ready", "available", "delayed"]] = ("ready", "delayed"),
    ) -> m.Moved:
        """Copy messages to another queue; arguments are as in :meth:`move_messages`. Each message is stored once.

        A repeated call copies only messages that the target does not have, in any state.
        """
        return self._move(queue, target, where, ids, limit, states, copy=True)

    def _move(
        self,
        queue: str,
        target: str,
        where: str,
        ids: Iterable[int] | None,
        limit: int,
        states: Iterable[str],
        *,
        copy: bool,
    ) -> m.Moved:
        wire_states, id_list = list(map(checks.wire_state, states)), checks.message_ids(ids)
        return self.calls.call_apart(m.MoveMessages(0, queue, target, where, id_list, limit, wire_states, copy))

    def archive_failed(
        self,
        queue: str,
        *,
        where: str = "",
        ids: Iterable[int] | None = None,
        older_than: Seconds | None = None,
        limit: int = 0,
    ) -> int:
        """Archive failed messages: all, or those that satisfy every argument; return their number.

        They become ``archived_failed`` and keep their payload, headers, attempts and time of failure. Lists show them
        in the order of archiving. No retention removes them, only :meth:`delete_settled` or the deletion of the queue.
        Other calls are not blocked.

        Args:
            where: only messages that match this filter.
            ids: only these messages.
            older_than: only messages that failed at least this many seconds ago.
            limit: the maximum number of messages; 0 means all. If the broker is killed, the call starts again, with a
                new count.

        Raises:
            RequestError: the filter is not valid, or the queue is not stored.
        """
        age = _age_ms(older_than)
        return self.calls.call_apart(m.ArchiveFailed(0, queue, age, checks.message_ids(ids), where, limit)).count

    def delete_settled(
        self,
        queue: str,
        state: Literal["done", "failed", "archived_failed"] = "done",
        *,
        older_than: Seconds | None = None,
        ids: Iterable[int] | None = None,
        all: bool = False,
    ) -> int:
        """Delete settled messages (done, failed or archived failed) and return their number.

        Other calls are not blocked. If the broker is killed, the call starts again, with a new count. Exactly one of
        the following arguments must be given.

        Args:
            older_than: delete messages that were settled at least this many seconds ago.
            ids: delete these messages.
            all: delete all of them.
        """
        age = _age_ms(older_than)
        return self.calls.call_apart(m.DeleteSettled(0, queue, state, age, checks.message_ids(ids), all)).count


def _age_ms(older_than: Seconds | None) -> int:
    """Return an age in ms; -1 means any age."""
    return -1 if older_than is None else checks.milliseconds(older_than, "older_than", high=checks.MAX_DELAY_SECONDS)
