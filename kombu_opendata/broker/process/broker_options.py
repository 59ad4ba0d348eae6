"""The options of the broker's command line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import unquote

from ...errors import SocketPathTooLong, StartError
from ...protocol.envelope import DEFAULT_MAX_MESSAGE_BYTES
from ...protocol.framing import FRAME_ROOM_BYTES
from ...storage.engine import EngineSettings
from ...storage.slatedb.slate_settings import SlateSettings
from ..access.users_file import UsersFile
from ..wire.broker_settings import BrokerSettings
from ..wire.certificates import TlsFiles
from ..wire.connection_limits import DEFAULT_GREETING_SECONDS, DEFAULT_MAX_CONNECTIONS, ConnectionLimits
from ..wire.server_tls import ServerTls

MAX_SOCKET_PATH_BYTES = 107
DEFAULT_PORT = 5677
#: listening there is listening on all addresses
WILDCARDS = {"0.0.0.0", "::"}
LOOPBACK = {"127.0.0.1", "::1", "localhost"}


@dataclass(frozen=True)
class Listen:
    """Where to listen: a Unix socket's ``path``, or ``host`` and ``port``."""

    path: str = ""
    host: str = ""
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"unix:{self.path}" if self.path else f"tcp:{host}:{self.port}"


def parse_listen(text: str) -> Listen:
    """Read ``unix:/path`` or ``tcp:host:port`` (``tcp:[::1]:5677`` for IPv6).

    Raises:
        StartError, SocketPathTooLong: it is not valid.
    """
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest:
        size = len(rest.encode())
        if size > MAX_SOCKET_PATH_BYTES:
            raise SocketPathTooLong(
                f"the socket path {rest} has {size} bytes, the system's limit is {MAX_SOCKET_PATH_BYTES}: "
                "use a shorter folder, or --listen tcp:…",
                path=rest,
                limit=MAX_SOCKET_PATH_BYTES,
            )
        return Listen(path=rest)
    address = _parse_address(rest, DEFAULT_PORT)
    if kind != "tcp" or address is None:
        raise StartError(f"--listen {text!r} is neither unix:PATH nor tcp:HOST:PORT")
    return address


def parse_metrics(text: str) -> Listen:
    """Read where to serve metrics: ``HOST:PORT``, ``[::1]:PORT``, or a ``PORT`` on loopback; 0 means any free port.

    Raises:
        StartError: it is not valid.
    """
    address = _parse_address(f":{text}" if text.isdecimal() else text, -1)
    if address is None or address.port < 0:
        raise StartError(f"--metrics {text!r} is not HOST:PORT, such as 127.0.0.1:9464 or [::1]:9464", value=text)
    return address


def _parse_address(text: str, default_port: int) -> Listen | None:
    """Read a host and a port, each of which may be missing; the default host is loopback."""
    found = re.fullmatch(r"(\[[^\]\s]+\]|[^:\[\]\s]*)(?::([0-9]{1,5}))?", text)
    if found is None or int(found[2] or 0) > 65_535:
        return None
    return Listen(host=found[1].strip("[]") or "127.0.0.1", port=int(found[2]) if found[2] else default_port)


@dataclass(frozen=True)
class BrokerOptions:
    """The options of the command line."""

    store: str
    listen: tuple[Listen, ...]
    embedded: bool = False
    ready_fd: int | None = None
    standby: bool = False
    advertise: tuple[str, ...] = ()
    idle_exit_seconds: float = 0.0
    heartbeat_seconds: float = 60.0
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    greeting_seconds: float = DEFAULT_GREETING_SECONDS
    sync: bool = True
    users: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tls_client_auth: str = "required"
    allow_anonymous: bool = False
    allow_cleartext: bool = False
    instances: tuple[str, ...] = ("default",)
    create_instances: bool = False
    maintain_every_seconds: float = EngineSettings.retention_interval_seconds
    metrics: Listen | None = None
    metrics_max_queues: int = 200
    log_format: str = "text"
    log_level: str = "INFO"
    slow_commit_seconds: float = EngineSettings.slow_commit_seconds
    retention_bytes: int | None = None  # None means a quarter of a folder's disk, no limit for a bucket
    history_days: float = EngineSettings.history_retention_seconds / 86_400
    log_retention_seconds: float = EngineSettings.log_retention_seconds

    @property
    def folder(self) -> Path | None:
        """The store's folder; None if it is not local."""
        return Path(unquote(self.store.removeprefix("file://"))) if self.store.startswith("file://") else None

    def advertised(self, addresses: Iterable[Listen]) -> tuple[str, ...]:
        """Where clients reach this broker: as given, else where it listens."""
        if self.advertise:
            return self.advertise
        found = (
            listen.path or str(listen).removeprefix("tcp:") for listen in addresses if listen.host not in WILDCARDS
        )
        return tuple(found)

    def settings(self) -> BrokerSettings:
        """The broker's settings.

        Raises:
            StartError: options contradict each other, or a file can't be read.
        """
        if self.standby and not self.advertise and all(listen.host in WILDCARDS for listen in self.listen):
            raise StartError(
                f"clients can't be told to connect to {self.listen[0]}: say with --advertise HOST:PORT where they "
                "reach this broker"
            )
        open_to_all = [listen.host for listen in self.listen if listen.host and listen.host not in LOOPBACK]
        tls = self._tls()
        only_certified = tls is not None and tls.files.client_ca is not None and tls.files.clients_need_certificates
        if open_to_all and self.users is None and not self.allow_anonymous and not only_certified:
            raise StartError(
                f"listening on {open_to_all[0]} without --users would let everybody in: "
                "give --users FILE, or --allow-anonymous if you want that"
            )
        if open_to_all and self.users is not None and tls is None and not self.allow_cleartext:
            raise StartError(
                f"listening on {open_to_all[0]} with --users and without TLS would show secrets to the network: give "
                "--tls-cert FILE and --tls-key FILE, or --allow-cleartext if the network is trusted or has TLS itself"
            )
        return BrokerSettings(
            store=self.store,
            max_message_bytes=self.max_message_bytes,
            max_frame_bytes=self.max_message_bytes + FRAME_ROOM_BYTES,
            idle_exit_seconds=self.idle_exit_seconds,
            heartbeat_seconds=self.heartbeat_seconds,
            users=UsersFile(self.users) if self.users is not None else None,
            tls=tls,
            create_instances=self.create_instances,
            connections=ConnectionLimits(self.max_connections, greeting_seconds=self.greeting_seconds),
            engine=EngineSettings(
                sync=self.sync,
                retention_interval_seconds=self.maintain_every_seconds,
                slow_commit_seconds=self.slow_commit_seconds,
                slate=SlateSettings(metrics=self.metrics is not None),
                retention_bytes=self._retention_bytes(),
                history=self.history_days > 0,
                history_retention_seconds=86_400 * self.history_days,
                log_retention_seconds=self.log_retention_seconds,
            ),
        )

    def _tls(self) -> ServerTls | None:
        if self.tls_cert is None:
            for name, given in (("--tls-key", self.tls_key), ("--tls-client-ca", self.tls_client_ca)):
                if given is not None:
                    raise StartError(f"{name} without --tls-cert: give the certificate, too")
            return None
        required = self.tls_client_auth == "required"
        return ServerTls(TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca, required))

    def _retention_bytes(self) -> int:
        if self.retention_bytes is not None or self.folder is None:
            return self.retention_bytes or 0
        place = self.folder
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            return shutil.disk_usage(place).total // 4
        except OSError as exc:
            raise StartError(f"the size of the disk of {place} is unknown: {exc.strerror}") from exc

    def described(self) -> Iterator[str]:
        """The options that are not the default, for the log. None of them is secret."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name in ("store", "ready_fd"):
                continue
            if isinstance(value, Listen):
                value = str(value)
            yield f"{field.name}={[str(v) for v in value] if isinstance(value, tuple) else value}"
