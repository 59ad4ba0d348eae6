"""Options of ``opendata-queue broker``.

:class:`BrokerOptions` is their only definition: the options of the command line, the keys of a TOML file and the
environment variables are derived from it. A field's option is its name with ``-`` for ``_``, without the unit
``_seconds``: ``idle_exit_seconds`` is ``--idle-exit``, ``idle-exit`` and ``OPENDATA_QUEUE_IDLE_EXIT``.
``msgspec.field(name=…)`` sets another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import msgspec

from .addresses import WILDCARDS, Listen
from .kinds import (
    Choice,
    File,
    Flag,
    FolderKind,
    HostPort,
    Keep,
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
from .specs import Option, Spec, specs_of


def _key(field: str) -> str:
    return field.removesuffix("_seconds").replace("_", "-")


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True, rename=_key):
    """Options of a broker, in the order of ``--help``."""

    store: Annotated[
        str, Option(StoreKind(), "a folder, or an object store: s3://bucket/prefix, gs://…, az://…, memory://name")
    ]
    listen: Annotated[tuple[Listen, ...], Option(ListenAddress(), "unix:PATH or tcp:HOST:PORT", repeated=True)]
    socket_mode: Annotated[
        int | None,
        Option(
            Mode(),
            "of Unix sockets: who may write to one may connect; default: 0600, 0660 with --socket-group, 0666 with "
            "--users",
        ),
    ] = None
    socket_group: Annotated[str | None, Option(Word("GROUP"), "of Unix sockets: its members may connect")] = None
    instance: Annotated[
        tuple[str, ...],
        Option(Word("NAME"), "open it at the start, and create it if it does not exist", repeated=True),
    ] = ("default",)
    standby: Annotated[
        bool,
        Option(
            Flag(),
            "be active if no other broker of the store is; else wait, send clients there, and take over when it ends",
        ),
    ] = False
    advertise: Annotated[
        tuple[Listen, ...],
        Option(HostPort(), "where clients and the standby reach this broker; default: where it listens", repeated=True),
    ] = ()
    renew_every_seconds: Annotated[
        float,
        Option(
            Seconds(0.2, 60),
            "time between looks at the record of the active broker in a bucket; a standby waits three times as long",
        ),
    ] = 1.0
    take_over: Annotated[
        bool, Option(Flag(), "with a bucket: end the active broker, even if it is alive, and take over")
    ] = False
    create_instances: Annotated[
        bool, Option(Flag(), "create any instance that a client names, even a misspelt one")
    ] = False
    users: Annotated[Path | None, Option(File(), "TOML file of users and their rights; see user add")] = None
    tls_cert: Annotated[Path | None, Option(File(), "certificate chain (PEM) for opendatas:// clients")] = None
    tls_key: Annotated[Path | None, Option(File(), "its private key (PEM), if it is not in that file")] = None
    tls_client_ca: Annotated[
        Path | None,
        Option(
            File(), "authorities (PEM) whose certificates clients log in with; may hold their revocation lists, too"
        ),
    ] = None
    tls_client_auth: Annotated[
        str,
        Option(
            Choice("required", "optional"),
            "with --tls-client-ca: whether a client without a certificate may log in with a secret (optional)",
        ),
    ] = "required"
    allow_anonymous: Annotated[bool, Option(Flag(), "listen on a network without --users")] = False
    allow_cleartext: Annotated[bool, Option(Flag(), "listen on a network with --users but without TLS")] = False
    max_connections: Annotated[
        int, Option(WholeNumberKind(1, 1_000_000), "connections of clients; fewer if ulimit -n does not allow as many")
    ] = 10_000
    max_channels: Annotated[int, Option(WholeNumberKind(1, 1_000_000), "channels of each connection")] = 2047
    max_consumers: Annotated[int, Option(WholeNumberKind(1, 1_000_000), "consumers of each connection")] = 10_000
    max_queues: Annotated[int, Option(WholeNumberKind(1, 10_000_000), "queues of each instance")] = 100_000
    max_bindings: Annotated[int, Option(WholeNumberKind(1, 10_000_000), "bindings of each instance")] = 200_000
    max_instances: Annotated[
        int, Option(WholeNumberKind(1, 1_000_000), "instances, those that clients create included")
    ] = 1000
    greeting_timeout_seconds: Annotated[
        float, Option(Seconds(0.1), "time within which a new connection must log in, TLS handshake included")
    ] = 10.0
    max_message_bytes: Annotated[int, Option(Size(1 << 10, 512 << 20), "the largest message, or result of a task")] = (
        128 << 20
    )
    memory_limit: Annotated[
        str,
        Option(
            Memory(),
            "publishers wait while the broker uses more memory: bytes, or a part of what the machine or its control "
            "group has; 0: no limit",
        ),
    ] = "40%"
    no_sync: Annotated[
        bool,
        Option(Flag(), "skip fsync: a power loss may then lose confirmed messages, a crash of the broker does not"),
    ] = False
    store_timeout_seconds: Annotated[
        float,
        Option(Seconds(), "refuse publishes that have waited this long for a bucket that does not answer; 0: never"),
    ] = 10.0
    cache_dir: Annotated[
        Path | None,
        Option(
            FolderKind(),
            "keep parts of a bucket's tables in this folder of a local disk, so that reads need no requests",
        ),
    ] = None
    cache_bytes: Annotated[
        int, Option(Size(64 << 20), "about how large that cache becomes, for each instance: 500M, 20G")
    ] = 10 << 30
    idle_exit_seconds: Annotated[float, Option(Seconds(), "stop after this long without a client; 0: never")] = 0.0
    maintain_every_seconds: Annotated[
        float,
        Option(
            Seconds(0.1),
            "time between the broker's own maintenance runs; a client that asks for maintenance postpones them",
        ),
    ] = 10.0
    retention_bytes: Annotated[
        int | None,
        Option(
            Size(),
            "above this size, the oldest settled messages of an instance are removed early; 0: no limit; "
            "default: a quarter of the disk for a folder, no limit for a bucket",
        ),
    ] = None
    no_task_outcomes: Annotated[bool, Option(Flag(), "don't request task outcomes from workers")] = False
    history_days: Annotated[
        float, Option(NumberKind(0, 36_500, metavar="DAYS"), "how long finished attempts are kept; 0: no history")
    ] = 14.0
    log_retention_seconds: Annotated[
        float,
        Option(
            Keep(),
            "how long messages that no queue needs any more can still be replayed: a time since they were received "
            "(7d), or forever; settled: not at all",
        ),
    ] = 0.0
    heartbeat_seconds: Annotated[
        float, Option(Seconds(), "time between heartbeats to TCP clients; 0: as the clients ask")
    ] = 60.0
    metrics: Annotated[
        Listen | None,
        Option(
            HostPort(),
            "serve /metrics (Prometheus), /healthz, /readyz and /queues there; a PORT alone: for this host only",
        ),
    ] = None
    metrics_max_queues: Annotated[
        int, Option(WholeNumberKind(0, 10_000), "how many queues have their own series; the others are summed")
    ] = 200
    log_format: Annotated[str, Option(Choice("text", "json"), "one line a record, or one JSON object a line")] = "text"
    log_level: Annotated[
        str, Option(Choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), "the least level that is logged")
    ] = "INFO"
    slow_commit_seconds: Annotated[float, Option(Seconds(above=0), "log each commit that takes at least this long")] = (
        1.0
    )
    embedded: Annotated[bool, Option(Flag(), internal=True)] = False

    @property
    def folder(self) -> Path | None:
        """Folder of the store; None if it is not local."""
        return Path(unquote(self.store.removeprefix("file://"))) if self.store.startswith("file://") else None

    def advertised(self, addresses: Iterable[Listen]) -> tuple[str, ...]:
        """Return the addresses at which clients reach this broker.

        Those of the option, else those that it listens on.
        """
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
    return specs_of(BrokerOptions)


def public_specs() -> tuple[Spec, ...]:
    """Return the options that files and the environment have, too."""
    return tuple(spec for spec in specs() if not spec.option.internal)
