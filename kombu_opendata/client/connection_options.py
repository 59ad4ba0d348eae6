"""A client's settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import RequestError

#: the settings that users give in seconds, by the names of the fields
SECONDS = ("start_timeout", "reconnect_timeout", "resume_timeout", "close_timeout", "idle_exit")
#: what a client may say about the broker that it starts, by the names of the broker's options; and the choices
BROKER_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "metrics": (),
    "log_retention": (),
    "log_format": ("text", "json"),
    "log_level": ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    "max_message_bytes": (),
    "retention_bytes": (),
}
#: as the broker's command line takes it
_SIZE = re.compile(r"\d{1,18}[KMGT]?", re.ASCII | re.IGNORECASE)


def check_broker_options(given: Any) -> Mapping[str, str]:
    """The broker's options as a user gives them, each as a text.

    Raises:
        RequestError: no mapping, or a name or a value that is none of :data:`BROKER_OPTIONS`.
    """
    known = ", ".join(BROKER_OPTIONS)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RequestError(f"broker_options {given!r} is no dictionary of {known}", option="broker_options")
    unknown = [name for name in given if name not in BROKER_OPTIONS]
    if unknown:
        raise RequestError(f"broker_options has {unknown[0]!r}: there are {known}", option="broker_options")
    for name, choices in BROKER_OPTIONS.items():
        value = given.get(name)
        if value is not None and choices and value not in choices:
            text = f"broker_options: {name} {value!r} is none of {', '.join(choices)}"
            raise RequestError(text, option="broker_options")
    if not _SIZE.fullmatch(str(given.get("retention_bytes") or 0)):
        text = f"broker_options: retention_bytes {given['retention_bytes']!r} is no number of bytes, nor as 500M or 20G"
        raise RequestError(text, option="broker_options")
    return {name: str(value) for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Options:
    """Settings of one connection; times in seconds.

    Attributes:
        name: the consumer id that the broker records; empty is ``host:pid``.
        user: overrides the address's user.
        secret: overrides the address's secret; a callable is asked at each connect.
        tls: None leaves it to the URL, True is TLS with the system's certificates, a mapping gives ``ca_certs``,
            ``certfile``, ``keyfile``, ``keyfile_password``, ``cert_reqs``, ``check_hostname``, ``ciphers``,
            ``server_hostname`` or a ready ``context``.
        connect_timeout: for one attempt to connect and be welcomed.
        start_timeout: for an embedded broker to come up.
        reconnect_timeout: how long after its loss calls wait for a connection to be resumed.
        resume_timeout: how long after its loss a session is kept: an event loop, or who waits for deliveries, tries to
            resume it for so long.
        heartbeat: how often the client wants to hear of the broker, over TCP; 0 is as the broker likes.
        close_timeout: how long closing waits for the broker's answer.
        may_start: whether a folder's broker is started where none runs.
        idle_exit: after how long without a client an embedded broker exits.
        broker_options: of the broker that is started for a folder, see :data:`BROKER_OPTIONS`.
        pipelined: publishes are sent without waiting for their confirmation.
        pipeline_depth: how many publishes may be in flight, 1 to 1,000.
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
    idle_exit: float = 60.0
    broker_options: Mapping[str, str] | None = None
    pipelined: bool = False
    pipeline_depth: int = 1000

    def resolve_secret(self) -> str | None:
        """The secret for the next Hello, or None where only the address has one."""
        return (self.secret() if callable(self.secret) else self.secret) or None


DEFAULTS = Options()
