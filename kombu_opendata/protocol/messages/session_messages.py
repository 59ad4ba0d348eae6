"""Messages that open, resume and end a session, and the replies that any call can have."""

from __future__ import annotations

from typing import Any

import msgspec

from ..permissions import entry
from ..task_reports import TaskReport
from .message_base import Held, Numbered, Request, WireMessage, operation


# ------------------------------------------------------------------ broker → client
class Welcome(Numbered, tag=101):
    """Reply to Hello or Resume: the limits of the connection, and the state of the session."""

    broker_version: str
    max_frame_bytes: int
    max_message_bytes: int
    heartbeat_ms: int  # the broker sends a message at least this often; 0: no heartbeats
    last_seq: int  # number of the session's last publish that was applied
    adopted: int  # number of held leases that the session keeps
    task_outcomes: bool = False  # the broker requests reports of task outcomes
    run_id: bytes = b""  # random id of the run of the instance: when it changes, transient data is lost
    session_known: bool = False  # the broker still had the session


class LoggedIn(Numbered, tag=115):
    """Reply to a Hello with ``resume_follows``: the client may send its Resume."""


class Ok(Numbered, tag=102):
    """Success of a call."""

    warnings: list[str] = msgspec.field(default_factory=list)  # about an accepted declaration


class Failed(Numbered, tag=103):
    """Failure of a call; see kombu_opendata.errors. With ``rid`` 0 the connection failed, and the broker closes it."""

    code: str
    text: str
    values: dict[str, Any]


class BrokerHeartbeat(WireMessage, tag=111):
    """Heartbeat of the broker."""


class BrokerGoodbye(WireMessage, tag=112):
    """Notice that the broker stops; the client reconnects later."""

    reason: str


# ------------------------------------------------------------------ client → broker
class Hello(Numbered, tag=1):
    """First message of a connection, at most 8 KiB. Reply: Welcome or Failed; the client sends nothing until then.

    ``resume`` is True if the session existed before. If ``resume_follows`` is also True, the reply to a successful
    login is LoggedIn, and the client then sends its state as a Resume. A client that sets only ``resume`` sends
    ``held`` and ``settles`` in the Hello.
    """

    session: bytes  # 16 random bytes
    name: str  # consumer id, e.g. "celery@host:1234"
    instance: str = "default"
    user: str = ""
    secret: str = ""
    resume: bool = False
    held: list[tuple[int, str, int, int]] = msgspec.field(default_factory=list)  # channel, queue, id, token
    settles: list[tuple[int, str, int, int]] = msgspec.field(default_factory=list)  # outcome, queue, id, token
    heartbeat_ms: int = 0  # requested interval of the broker's messages; 0: no preference
    client: bytes = b""  # 16 random bytes; the sessions of one client share exclusive queues. Empty: only this session
    resume_follows: bool = False
    act_as: str = ""  # the user whose permissions the session has; needs the role admin
    undeclared: bool = False  # the client supports the message Undeclared

    def __repr__(self) -> str:
        """Return a representation without the secret, for tracebacks that show variables."""
        return f"Hello(name={self.name!r}, instance={self.instance!r}, user={self.user!r}, resume={self.resume})"


@operation("send a heartbeat", entry(), overtakes=True)
class Heartbeat(WireMessage, tag=2):
    """Heartbeat of the client. It gets no reply."""


@operation("end the session", entry())
class Goodbye(Request[Ok], tag=18):
    """Request to end the session: its leases are released and its publish counter is deleted.

    Started tasks without a report become lost. With ``tasks_go_on``, the client reports them in another session.
    """

    tasks_go_on: bool = False


class Resume(Numbered, tag=20):
    """Client's state of a resumed session; sent once, after LoggedIn. Reply: Welcome.

    ``held`` lists the leases that the client still holds; ``settles`` lists, in order, the settlements that were sent
    but not confirmed. The client did not receive the other leases of the session, so their messages return to their
    queues. ``reports`` has the reports of the tasks of some of these settlements.
    """

    held: Held[tuple[int, str, int, int]]  # channel, queue, id, token
    settles: Held[tuple[int, str, int, int]]  # outcome, queue, id, token
    reports: Held[tuple[int, TaskReport]] = msgspec.field(default_factory=list)  # index in ``settles``, report
