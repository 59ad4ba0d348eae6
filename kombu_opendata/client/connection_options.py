"""The settings of a connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import RequestError

#: names of the fields that users set in seconds
SECONDS = ("start_timeout", "reconnect_timeout", "resume_timeout", "close_timeout", "idle_exit")
#: options of the broker that a client may set for the one that it starts
BROKER_OPTIONS = (
    "metrics", "log_retention", "log_format", "log_level", "max_message_bytes", "memory_limit", "retention_bytes",
    "socket_group",
)  # fmt: skip


def check_broker_options(given: Any) -> Mapping[str, str]:
    """The broker's options that a user has given, each as a text.

    Raises:
        RequestError: it is not a mapping, or a name or a value is not one of :data:`BROKER_OPTIONS`.
    """
    if given is None:
        return {}
    if fault := _fault(given):
        raise RequestError(f"broker_options{fault}", option="broker_options")
    return {name: str(value) for name, value in given.items() if value is not None}


def _fault(given: Any) -> str:
    """What is wrong with the broker's options; empty if nothing is."""
    known = ", ".join(BROKER_OPTIONS)
    if not isinstance(given, Mapping):
        return f" {given!r} is not a dictionary; its keys may be {known}"
    for name in given:
        if name not in BROKER_OPTIONS:
            return f" has the unknown key {name!r}; known are {known}"
    return _faulty_value(given) if given else ""


def _faulty_value(given: Mapping[str, Any]) -> str:
    from ..configuration.options import specs

    kinds = {spec.key: spec for spec in specs()}
    for name, value in given.items():
        try:
            if value is not None:
                kinds[name.replace("_", "-")].read(value)
        except ValueError as exc:
            return f": {name}: {exc}"
    return ""


@dataclass(frozen=True)
class Options:
    """Settings of one connection; times in seconds.

    Attributes:
        name: the consumer id that the broker records; empty means a Celery worker's node name, or ``host:pid``.
        user: for an address without one.
        act_as: another user, whose rights the session shall have; only a user with the role admin may do so.
        secret: for an address without one; a callable is called before each login. Without any secret, a user's is read
            from the file that ``OPENDATA_SECRET_FILE`` names, or is the value of ``OPENDATA_SECRET``.
        tls: None leaves the choice to the URL, True means TLS with the system's certificates, and a mapping may have
            ``ca_certs``, ``certfile``, ``keyfile``, ``keyfile_password``, ``cert_reqs``, ``check_hostname``,
            ``ciphers``, ``server_hostname`` or a ready ``context``.
        connect_timeout: how long one attempt to connect and log in may take.
        start_timeout: how long an embedded broker may take to come up.
        reconnect_timeout: how long after the loss of a connection calls wait until it is resumed.
        resume_timeout: how long after the loss an event loop, or a wait for deliveries, tries to resume the session.
        heartbeat: how often the broker shall send something, over TCP; 0 leaves the interval to the broker.
        close_timeout: how long closing waits for the broker's answer.
        may_start: whether to start the broker of a folder if it does not run.
        patient: whether a first attempt that is answered "not now" (:class:`.RetryLater`), as by a standby, is repeated
            for ``connect_timeout``.
        idle_exit: how long without clients an embedded broker waits before it exits.
        broker_options: options of the broker that is started for a folder, see :data:`BROKER_OPTIONS`.
        pipelined: publishes are sent without waiting for their confirmations.
        pipeline_depth: how many publishes may be in flight, 1 to 1,000.
        task_outcomes: whether to report what becomes of tasks, if the broker wants to know.
    """

    name: str = ""
    user: str = ""
    secret: str | Callable[[], str] = field(default="", repr=False)
    tls: bool | Mapping[str, Any] | None = field(default=None, repr=False)
    connect_timeout: float = 5.0
    start_timeout: float = 15.0
    reconnect_timeout: float = 10.0
    resume_timeout: float = 60.0
    heartbeat: float = 0.0
    close_timeout: float = 5.0
    may_start: bool = True
    patient: bool = True
    idle_exit: float = 60.0
    broker_options: Mapping[str, str] | None = None
    pipelined: bool = False
    pipeline_depth: int = 1000
    task_outcomes: bool = True
    act_as: str = ""

    def resolve_secret(self) -> str | None:
        """The secret for the next login, or None."""
        return (self.secret() if callable(self.secret) else self.secret) or None


DEFAULTS = Options()
