"""Settings of a connection, the user options that set them, and the default name of this process's clients."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from ..errors import RequestError
from ..url import Address
from .foreign_options import BY_NAME, ForeignOptions

if TYPE_CHECKING:
    from ..configuration.kinds import Kind

log = logging.getLogger(__name__)

#: names of the fields that users set in seconds
SECONDS = ("start_timeout", "reconnect_timeout", "resume_timeout", "close_timeout", "idle_exit")
#: all options that users may set for a transport
TRANSPORT_OPTIONS = (
    *SECONDS, "publish_mode", "pipeline_depth", "task_outcomes", "broker_options", "consumer_name", "deadletter_queue",
    "body_encoding",
)  # fmt: skip
#: all options that users may set for the result backend
BACKEND_OPTIONS = (*SECONDS, "connect_timeout", "broker_options", "consumer_name", "ssl", "global_keyprefix")
#: options that Kombu reads or adds for every transport
KOMBU_OPTIONS = frozenset((
    "callback", "connect_retries_timeout", "errback", "interval_max", "interval_start", "interval_step", "max_retries",
    "on_revive", "retry_errors",
))  # fmt: skip
#: the broker recognizes a repeated publish only among the last 1,024 publishes of a session
MAX_PIPELINE_DEPTH = 1000
#: options that a client may set for the broker that it starts
BROKER_OPTIONS = (
    "metrics", "log_retention", "log_format", "log_level", "max_message_bytes", "memory_limit", "retention_bytes",
    "socket_group",
)  # fmt: skip


#: options that are truth values; parsers of ini files may return them as the numbers 0 and 1
_FLAGS = ("task_outcomes",)
#: settings that were already reported in this process
_reported: set[str] = set()


def check_names(place: str, options: Mapping[str, Any], valid_names: Collection[str]) -> None:
    """Report options without effect, each once in a process, with their replacement.

    Args:
        place: the setting that has the options, for messages.
        valid_names: the options that have an effect there.

    Raises:
        RequestError: no broker has such an option.
    """
    for name in options:
        if name in valid_names or name in KOMBU_OPTIONS:
            continue
        foreign = BY_NAME.get(name) or _of_other_place(name)
        if foreign is None:
            close = get_close_matches(str(name), [*valid_names, *BY_NAME], n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(valid_names)}"
            raise RequestError(f"{place}: the option {name!r} is unknown; {hint}", option=str(name))
        report_unused(f"{place}: {name!r} (an option of {foreign.brokers})", foreign.instead)


def _of_other_place(name: str) -> ForeignOptions | None:
    if name in BACKEND_OPTIONS:
        return ForeignOptions((name,), "the result backend", "set it in result_backend_transport_options")
    if name in TRANSPORT_OPTIONS:
        return ForeignOptions((name,), "the transport", "set it in broker_transport_options")
    return None


def report_unused(setting: str, instead: str) -> None:
    """Log, once in a process, that a setting has no effect.

    The report is a log record and not a :class:`Warning`, because apps may share settings between brokers on purpose.
    For a warning, Python would print a source line of this package, and test suites that turn warnings into errors
    would fail.
    """
    if setting not in _reported:
        _reported.add(setting)
        log.warning("%s has no effect with this broker: %s", setting, instead)


def read_values(place: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set, converted from texts if necessary; raise RequestError for an invalid value."""
    kinds = _kinds() if options else {}
    values = {name: value for name, value in options.items() if value is not None and value != ""}
    for name, value in values.items():
        if name not in kinds:
            continue
        try:
            values[name] = kinds[name].read(bool(value) if name in _FLAGS and value in (0, 1) else value)
        except ValueError as exc:
            raise RequestError(f"{place}: {name}: {exc}", option=name) from exc
    if "broker_options" in values:
        values["broker_options"] = check_broker_options(values["broker_options"])
    return values


def _kinds() -> Mapping[str, Kind[Any]]:
    from ..configuration.kinds import Choice, Flag, Seconds, WholeNumberKind  # most clients give no options

    return {
        **dict.fromkeys((*SECONDS, "connect_timeout"), Seconds()),
        "publish_mode": Choice("confirm", "pipeline"),
        "pipeline_depth": WholeNumberKind(1, MAX_PIPELINE_DEPTH),
        "task_outcomes": Flag(),
    }


def check_broker_options(options: Any) -> Mapping[str, str]:
    """Return the broker options of a user, each as a text.

    Raises:
        RequestError: the options are not a mapping, a name is not in :data:`BROKER_OPTIONS`, or a value is invalid.
    """
    if options is None:
        return {}
    valid_names = ", ".join(BROKER_OPTIONS)
    if not isinstance(options, Mapping):
        raise _invalid(f" {options!r} is not a dictionary; its keys may be {valid_names}")
    for name, value in options.items():
        from ..configuration.options import specs  # most clients give no options

        if name not in BROKER_OPTIONS:
            raise _invalid(f" has the unknown key {name!r}; known are {valid_names}")
        spec = next(spec for spec in specs() if spec.key == name.replace("_", "-"))
        try:
            if value is not None:
                spec.read(value)
        except ValueError as exc:
            raise _invalid(f": {name}: {exc}") from exc
    return {name: str(value) for name, value in options.items() if value is not None}


def _invalid(fault: str) -> RequestError:
    return RequestError(f"broker_options{fault}", option="broker_options")


@dataclass(frozen=True)
class Options:
    """Settings of one connection; times in seconds.

    Attributes:
        name: the consumer id that the broker records; empty means a Celery worker's node name, or ``host:pid``.
        user: used if the address names no user.
        act_as: another user whose permissions the session has; only users with the role admin may set it.
        secret: used if the address has no secret; a function is called before each login. If neither is set, the secret
            is read from the file that ``OPENDATA_SECRET_FILE`` names, or from the variable ``OPENDATA_SECRET``.
        tls: None leaves the choice to the URL, True means TLS with the system's certificates, and a mapping may have
            ``ca_certs``, ``certfile``, ``keyfile``, ``keyfile_password``, ``cert_reqs``, ``check_hostname``,
            ``ciphers``, ``server_hostname`` or a ready ``context``.
        connect_timeout: limit for one attempt to connect and log in.
        start_timeout: limit for the startup of an embedded broker.
        reconnect_timeout: time for which a call waits for the resume after a connection was lost.
        resume_timeout: time for which an event loop, or a thread that waits for deliveries, tries to resume.
        heartbeat: interval of the broker's heartbeats over TCP; 0 leaves the interval to the broker.
        close_timeout: time for which closing waits for the broker's reply.
        may_start: whether to start the broker of a folder if it does not run.
        patient: whether to retry the first connect for ``connect_timeout`` if the broker refuses it temporarily
            (:class:`.RetryLater`), as a standby does.
        idle_exit: time without clients after which an embedded broker exits.
        broker_options: options of the broker that is started for a folder, see :data:`BROKER_OPTIONS`.
        pipelined: whether publishes are sent without waiting for their confirmations.
        pipeline_depth: limit for publishes in flight, 1 to 1,000.
        task_outcomes: whether to report the outcomes of tasks, if the broker requests it.
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
        """Return the secret for the next login, or None."""
        return (self.secret() if callable(self.secret) else self.secret) or None


DEFAULTS = Options()


def report_tls(setting: str, options: Options, addresses: Iterable[Address]) -> None:
    """Report that TLS was requested although all connections stay on this machine."""
    if options.tls and not any(address.kind == "tcp" for address in addresses):
        report_unused(setting, "the connection stays on this machine, and the broker checks the user of the process")


#: the longest name that a broker accepts
MAX_NAME_BYTES = 255
_process_name = ""


def name_process(name: str) -> None:
    """Name the clients that this process and its forks connect from now on; a longer name is cut."""
    global _process_name
    _process_name = name.encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore")


def default_name() -> str:
    """Return the name that :func:`name_process` set, else ``host:pid``."""
    return _process_name or f"{socket.gethostname()}:{os.getpid()}"
