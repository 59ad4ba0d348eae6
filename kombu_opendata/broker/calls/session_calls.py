"""Calls about a session: heartbeat, ping and end."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol import messages as m
from ...protocol.messages import queue_messages as q
from ...storage.commit.commits import Commits
from ..delivery.background import Background
from ..delivery.outbox import Outbox
from ..delivery.session_lifecycle import SessionLifecycle
from .dispatch.context import Context
from .dispatch.registry import handles


@dataclass(frozen=True, slots=True)
class SessionCalls:
    """The calls about a session itself."""

    _lifecycle: SessionLifecycle
    _outbox: Outbox
    _background: Background
    _commits: Commits

    @handles(m.Heartbeat)
    def heartbeat(self, call: Context, msg: m.Heartbeat) -> None:
        """Do nothing: receiving the message is sufficient."""

    @handles(q.Ping)
    def ping(self, call: Context, msg: q.Ping) -> None:
        """Reply after a commit."""
        self._commits.needs_sync = True
        call.reply(m.Ok(msg.rid))

    @handles(m.Goodbye)
    def goodbye(self, call: Context, msg: m.Goodbye) -> None:
        """End the session; its connection closes after the reply."""
        connection = call.session.connection
        self._background.forget(call.session.id)
        self._lifecycle.close(call.session, m.Outcome.RELEASE, tasks_go_on=msg.tasks_go_on)
        if connection is not None:
            connection.leave()
            self._outbox.answer_last(connection, m.Ok(msg.rid))
