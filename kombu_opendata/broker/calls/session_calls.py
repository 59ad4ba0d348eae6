"""A session: its heartbeat, its ping, its end."""

from __future__ import annotations

from ...protocol import messages as m
from ...protocol import queue_messages as q
from ...storage.commit.commits import Commits
from ..delivery.outbox import Outbox
from ..delivery.session_lifecycle import SessionLifecycle
from .context import Context
from .registry import handles


class SessionCalls:
    """What a client says of its session."""

    def __init__(self, lifecycle: SessionLifecycle, outbox: Outbox, commits: Commits) -> None:
        self._lifecycle = lifecycle
        self._outbox = outbox
        self._commits = commits

    @handles(m.Heartbeat)
    def heartbeat(self, call: Context, msg: m.Heartbeat) -> None:
        """Nothing to do: that it came is what counts."""

    @handles(q.Ping)
    def ping(self, call: Context, msg: q.Ping) -> None:
        """Answered after a commit."""
        self._commits.needs_sync = True
        call.reply(m.Ok(msg.rid))

    @handles(m.Goodbye)
    def goodbye(self, call: Context, msg: m.Goodbye) -> None:
        """End the session; its connection closes after the answer."""
        connection = call.session.connection
        self._lifecycle.close(call.session, m.Outcome.RELEASE)
        if connection is not None:
            connection.leave()
            self._outbox.answer_last(connection, m.Ok(msg.rid))
