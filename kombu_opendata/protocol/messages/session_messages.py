"""The messages that open, resume and end a session, and the answers that any call can have."""

from __future__ import annotations

from typing import Any

import msgspec

from ..frame_limits import Held
from ..task_reports import TaskReport
from .message_base import Numbered, WireMessage


# ------------------------------------------------------------------ client → broker
class Hello(Numbered, tag=1):
    """The first message of a connection, at most 8 KiB. Answer: Welcome or Failed; the client sends nothing until then.

    ``resume`` says that the session existed before. With ``resume_follows`` as well, a successful login is answered
    with LoggedIn, and the client then sends what it holds as a Resume. A client that sets only ``resume`` gives
    ``held`` and ``settles`` here.
    """

    session: bytes  # 16 random bytes
    name: str  # consumer id, e.g. "celery@host:1234"
    instance: str = "default"
    user: str = ""
    secret: str = ""
    resume: bool = False
    held: list[tuple[int, str, int, int]] = msgspec.field(default_factory=list)  # channel, queue, id, token
    settles: list[tuple[int, str, int, int]] = msgspec.field(default_factory=list)  # outcome, queue, id, token
    heartbeat_ms: int = 0  # how often the client wants to hear from the broker; 0: no preference
    client: bytes = b""  # 16 random bytes; the sessions of one client share exclusive queues. Empty: this one only
    resume_follows: bool = False
    act_as: str = ""  # the user whose rights the session has; needs the role admin
    undeclared: bool = False  # the client knows the message Undeclared

    def __repr__(self) -> str:
        """Without the secret, for tracebacks that show variables."""
        return f"Hello(name={self.name!r}, instance={self.instance!r}, user={self.user!r}, resume={self.resume})"


class Heartbeat(WireMessage, tag=2):
    """Proof that the client is alive. Not answered."""


class Goodbye(Numbered, tag=18):
    """End the session: its leases are released and its publish counter is forgotten. Answer: Ok.

    Tasks that it started and did not report are lost, unless ``tasks_go_on``: the client reports them in another
    session.
    """

    tasks_go_on: bool = False


class Resume(Numbered, tag=20):
    """What a client still has of a resumed session; sent once, after LoggedIn. Answer: Welcome.

    ``held`` lists the leases that the client still has, with the channel of each; ``settles`` lists, in order, the
    settlements that were sent but not confirmed. The client never received any other lease of the session, so those
    messages return to their queues. ``reports`` has what became of the tasks of some of these settlements.
    """

    held: Held[tuple[int, str, int, int]]  # channel, queue, id, token
    settles: Held[tuple[int, str, int, int]]  # outcome, queue, id, token
    reports: Held[tuple[int, TaskReport]] = msgspec.field(default_factory=list)  # place in ``settles``, report


# ------------------------------------------------------------------ broker → client
class Welcome(Numbered, tag=101):
    """Answer to Hello or Resume: the limits of this connection.

    ``last_seq`` is the session's last publish that was applied; ``adopted`` is how many held leases were taken over.
    The broker sends something at least every ``heartbeat_ms``; 0 means only when there is something to say.
    ``task_outcomes`` says that it wants to know what becomes of tasks. ``run_id`` is random for each run of the
    instance: what is only in memory lasts as long. ``session_known`` says that the broker still had the session.
    """

    broker_version: str
    max_frame_bytes: int
    max_message_bytes: int
    heartbeat_ms: int
    last_seq: int
    adopted: int
    task_outcomes: bool = False
    run_id: bytes = b""
    session_known: bool = False


class LoggedIn(Numbered, tag=115):
    """Answer to a Hello with ``resume_follows``: the client may send its Resume."""


class Ok(Numbered, tag=102):
    """The call is done."""

    warnings: list[str] = msgspec.field(default_factory=list)  # about a declaration that was accepted


class Failed(Numbered, tag=103):
    """The call failed; see kombu_opendata.errors. With rid 0 the connection failed, and the broker closes it."""

    code: str
    text: str
    values: dict[str, Any]


class BrokerHeartbeat(WireMessage, tag=111):
    """Proof that the broker is alive."""


class BrokerGoodbye(WireMessage, tag=112):
    """The broker stops; reconnect later."""

    reason: str
