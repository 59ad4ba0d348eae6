"""Options of ``opendata-queue broker``.

:class:`BrokerOptions` is their only definition: the options of the command line, the keys of a TOML file and the
environment variables are derived from it. A field's option is its name with ``-`` for ``_``, without the unit
``_seconds``: ``idle_exit_seconds`` is ``--idle-exit``, ``idle-exit`` and ``OPENDATA_QUEUE_IDLE_EXIT``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .addresses import WILDCARDS, Listen
from .kinds import (
    Choice,
    File,
    Flag,
    FolderKind,
    HostPort,
    Keep,
    Kind,
    ListenAddress,
    Memory,
    Mode,
    NumberKind,
    Seconds,
    Size,
    StoreKind,
    WholeNumberKind,
    Word,
)

ENVIRONMENT = "OPENDATA_QUEUE_"


@dataclass(frozen=True)
class Spec:
    """Option with its names.

    Attributes:
        field: the field of :class:`BrokerOptions`.
        default: the default; ``dataclasses.MISSING`` if the option is required.
        kind: the kind of its values.
        help: the text for ``--help``.
        repeated: True if it accepts several values: a repeated option, a list in a file, commas in a variable.
        internal: True for a hidden option of the command line, which a client uses to start an embedded broker.
    """

    field: str
    default: Any
    kind: Kind[Any]
    help: str
    repeated: bool
    internal: bool

    @property
    def key(self) -> str:
        """Key in a TOML file."""
        return self.field.removesuffix("_seconds").replace("_", "-")

    @property
    def flag(self) -> str:
        """Option of the command line."""
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """Environment variable of the option."""
        return ENVIRONMENT + self.key.upper().replace("-", "_")

    @property
    def required(self) -> bool:
        return self.default is MISSING

    def read(self, value: object, folder: str = "") -> Any:
        """Return the field's value from a value of a TOML file, a text, or (if repeated) a list of texts.

        Raise ValueError for an invalid value.
        """
        if not self.repeated:
            return self.kind.read(value, folder)
        values = value if isinstance(value, (list, tuple)) else (value,)
        if not values:
            raise ValueError("the list is empty: give at least one")
        return tuple(self.kind.read(item, folder) for item in values)

    def shown(self, value: Any) -> Any:
        """Return a value in the form of a TOML file; None if there is none."""
        if value is None:
            return None
        return [self.kind.shown(item) for item in value] if self.repeated else self.kind.shown(value)

    def described(self, value: Any) -> str:
        """Return a value in the form of the help; empty if there is none."""
        if value is None:
            return ""
        return ", ".join(self.kind.described(item) for item in (value if self.repeated else (value,)))


def option(
    kind: Kind[Any], help: str = "", default: Any = MISSING, *, repeated: bool = False, internal: bool = False
) -> Any:
    """Return a field of :class:`BrokerOptions`."""
    metadata = {"kind": kind, "help": help, "repeated": repeated, "internal": internal}
    return field(default=default, metadata=metadata)


_MILLION, _TEN_MILLION = WholeNumberKind(1, 1_000_000), WholeNumberKind(1, 10_000_000)


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """Options of a broker, in the order of ``--help``."""

    store: str = option(StoreKind(), "a folder, or an object store: s3://bucket/prefix, gs://…, az://…, memory://name")
    listen: tuple[Listen, ...] = option(ListenAddress(), "unix:PATH or tcp:HOST:PORT", repeated=True)
    socket_mode: int | None = option(
        Mode(),
        "of Unix sockets: who may write to one may connect; default: 0600, 0660 with --socket-group, 0666 with --users",
        None,
    )
    socket_group: str | None = option(Word("GROUP"), "of Unix sockets: its members may connect", None)
    instance: tuple[str, ...] = option(
        Word("NAME"), "open it at startup, and create it if it does not exist", ("default",), repeated=True
    )
    standby: bool = option(
        Flag(),
        "be active if no other broker of the store is; else wait, send clients there, and take over when it ends",
        False,
    )
    advertise: tuple[Listen, ...] = option(
        HostPort(), "where clients and the standby reach this broker; default: where it listens", (), repeated=True
    )
    renew_every_seconds: float = option(
        Seconds(0.2, 60),
        "time between reads of the active broker's record in a bucket; a standby waits three times as long",
        1.0,
    )
    take_over: bool = option(Flag(), "with a bucket: end the active broker, even if it is alive, and take over", False)
    create_instances: bool = option(Flag(), "create any instance that a client names, even a misspelt one", False)
    users: Path | None = option(File(), "TOML file of users and their permissions; see user add", None)
    tls_cert: Path | None = option(File(), "certificate chain (PEM) for opendatas:// clients", None)
    tls_key: Path | None = option(File(), "its private key (PEM), if it is not in that file", None)
    tls_client_ca: Path | None = option(
        File(), "authorities (PEM) whose certificates clients log in with; may hold their revocation lists, too", None
    )
    tls_client_auth: str = option(
        Choice("required", "optional"),
        "with --tls-client-ca: whether a client without a certificate may log in with a secret (optional)",
        "required",
    )
    allow_anonymous: bool = option(Flag(), "listen on a network without --users", False)
    allow_cleartext: bool = option(Flag(), "listen on a network with --users but without TLS", False)
    max_connections: int = option(_MILLION, "connections of clients; fewer if ulimit -n does not allow as many", 10_000)
    max_channels: int = option(_MILLION, "channels of each connection", 2047)
    max_consumers: int = option(_MILLION, "consumers of each connection", 10_000)
    max_queues: int = option(_TEN_MILLION, "queues of each instance", 100_000)
    max_bindings: int = option(_TEN_MILLION, "bindings of each instance", 200_000)
    max_instances: int = option(_MILLION, "instances, those that clients create included", 1000)
    greeting_timeout_seconds: float = option(
        Seconds(0.1), "time within which a new connection must log in, TLS handshake included", 10.0
    )
    max_message_bytes: int = option(Size(1 << 10, 512 << 20), "the largest message, or result of a task", 128 << 20)
    memory_limit: str = option(
        Memory(),
        "publishers wait while the broker uses more memory: bytes, or a part of what the machine or its control group"
        " has; 0: no limit",
        "40%",
    )
    no_sync: bool = option(
        Flag(), "skip fsync: a power loss may then lose confirmed messages, a crash of the broker does not", False
    )
    store_timeout_seconds: float = option(
        Seconds(), "refuse publishes that have waited this long for a bucket that does not answer; 0: never", 10.0
    )
    cache_dir: Path | None = option(
        FolderKind(),
        "keep parts of a bucket's tables in this folder of a local disk, so that reads need no requests",
        None,
    )
    cache_bytes: int = option(
        Size(64 << 20), "about how large that cache becomes, for each instance: 500M, 20G", 10 << 30
    )
    idle_exit_seconds: float = option(Seconds(), "stop after this long without a client; 0: never", 0.0)
    maintain_every_seconds: float = option(
        Seconds(0.1),
        "time between the broker's own maintenance runs; a client that asks for maintenance postpones them",
        10.0,
    )
    retention_bytes: int | None = option(
        Size(),
        "above this size, the oldest settled messages of an instance are removed early; 0: no limit; default: a "
        "quarter of the disk for a folder, no limit for a bucket",
        None,
    )
    no_task_outcomes: bool = option(Flag(), "don't request task outcomes from workers", False)
    history_days: float = option(
        NumberKind(0, 36_500, metavar="DAYS"), "how long finished attempts are kept; 0: no history", 14.0
    )
    log_retention_seconds: float = option(
        Keep(),
        "how long messages that no queue needs any more can still be replayed: a time since they were received (7d), "
        "or forever; settled: not at all",
        0.0,
    )
    heartbeat_seconds: float = option(Seconds(), "time between heartbeats to TCP clients; 0: as the clients ask", 60.0)
    metrics: Listen | None = option(
        HostPort(),
        "serve /metrics (Prometheus), /healthz, /readyz and /queues there; a PORT alone: for this host only",
        None,
    )
    metrics_max_queues: int = option(
        WholeNumberKind(0, 10_000), "how many queues have their own series; the others are summed", 200
    )
    open_telemetry: bool = option(
        Flag(), "export spans of traced messages and metrics by the OpenTelemetry SDK of the broker's process", False
    )
    log_format: str = option(Choice("text", "json"), "one line a record, or one JSON object a line", "text")
    log_level: str = option(
        Choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), "the least level that is logged", "INFO"
    )
    slow_commit_seconds: float = option(Seconds(above=0), "log each commit that takes at least this long", 1.0)
    embedded: bool = option(Flag(), "", False, internal=True)

    @property
    def folder(self) -> Path | None:
        """Folder of the store; None if it is not local."""
        return Path(unquote(self.store.removeprefix("file://"))) if self.store.startswith("file://") else None

    def advertised(self, addresses: Iterable[Listen]) -> tuple[str, ...]:
        """Return the addresses for clients: those of the option, or else those on which the broker listens."""
        reached = self.advertise or tuple(listen for listen in addresses if listen.host not in WILDCARDS)
        return tuple(listen.path or listen.authority for listen in reached)

    def described(self) -> Iterator[str]:
        """Yield the options that differ from the default, for the log. None of them is secret."""
        for spec in specs():
            value = getattr(self, spec.field)
            if value != spec.default and spec.field != "store":
                yield f"{spec.key}={spec.shown(value)}"


@cache
def specs() -> tuple[Spec, ...]:
    """Return all options."""
    return tuple(Spec(each.name, each.default, **each.metadata) for each in fields(BrokerOptions))


def public_specs() -> tuple[Spec, ...]:
    """Return the options that can also be set in a file or in the environment."""
    return tuple(spec for spec in specs() if not spec.internal)
