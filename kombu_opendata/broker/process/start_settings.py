"""Conversion of a broker's options to settings, and validation of the options without a startup.

A startup stops at the first error; the validation reports all errors.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ...configuration.addresses import LOOPBACK, WILDCARDS, Listen
from ...configuration.options import BrokerOptions
from ...errors import OpenDataError, StartError, StoreUnwritable
from ...private_folder import PrivateFolder, denied
from ...protocol.framing import FRAME_ROOM_BYTES
from ...storage.engine_settings import EngineSettings
from ...storage.slatedb.object_store import locate
from ...storage.slatedb.slate_settings import SlateSettings
from ..access.users_file import UsersFile
from ..access.users_format import LimitsTable
from ..standby.active_link import link_context
from ..standby.active_record import BucketRecord
from ..standby.active_role import ActiveRole, ActiveRoleSettings
from ..standby.bucket_active_role import BucketActiveRole
from ..standby.folder_active_role import FolderActiveRole
from ..standby.shared_file_systems import check_file_system
from ..standby.store_lock import StoreLock
from ..wire.broker_settings import BrokerSettings
from ..wire.connection_limits import ConnectionLimits
from ..wire.sockets import SocketAccess, group_id
from ..wire.tls_certificates import ServerTls, TlsFiles
from .instance_registry import check_name
from .memory_watch import memory_limit

#: time after a take-over in which clients may reconnect before their leases end: by the successor's clock, which may be
#: ahead, all leases may have expired
_TAKE_OVER_GRACE_SECONDS = 15.0


def broker_settings(options: BrokerOptions) -> BrokerSettings:
    """Return the settings of these options; raise StartError for contradictions, or a file that can't be read."""
    for text in contradictions(options):
        raise StartError(text)
    return BrokerSettings(
        store=options.store,
        max_message_bytes=options.max_message_bytes,
        max_frame_bytes=options.max_message_bytes + FRAME_ROOM_BYTES,
        idle_exit_seconds=options.idle_exit_seconds,
        heartbeat_seconds=options.heartbeat_seconds,
        memory_limit_bytes=memory_limit(options.memory_limit),
        users=UsersFile(options.users) if options.users is not None else None,
        tls=server_tls(options),
        socket_access=socket_access(options),
        create_instances=options.create_instances,
        instance_limits=LimitsTable(queues=options.max_queues, bindings=options.max_bindings),
        connection_limits=LimitsTable(channels=options.max_channels, consumers=options.max_consumers),
        max_instances=options.max_instances,
        restart_grace_seconds=_TAKE_OVER_GRACE_SECONDS if options.standby else 0.0,
        expects_standby=options.standby,
        connections=ConnectionLimits(options.max_connections, greeting_seconds=options.greeting_timeout_seconds),
        open_telemetry=options.open_telemetry,
        engine=EngineSettings(
            sync=not options.no_sync,
            retention_interval_seconds=options.maintain_every_seconds,
            slow_commit_seconds=options.slow_commit_seconds,
            store_timeout_seconds=options.store_timeout_seconds,
            cache_dir=options.cache_dir,
            slate=SlateSettings(metrics=options.metrics is not None, cache_bytes=options.cache_bytes),
            retention_bytes=retention_bytes(options),
            task_outcomes=not options.no_task_outcomes,
            history=options.history_days > 0,
            history_retention_seconds=86_400 * options.history_days,
            log_retention_seconds=options.log_retention_seconds,
        ),
    )


def contradictions(options: BrokerOptions) -> Iterator[str]:
    """Yield the contradictions between options, with their solutions."""
    if options.open_telemetry and find_spec("opentelemetry.metrics") is None:
        yield "--open-telemetry needs OpenTelemetry: pip install 'kombu-opendata[otel]'"
    if options.open_telemetry and not options.history_days:
        yield "--open-telemetry makes spans from the history: leave out --history-days 0"
    if options.standby and not options.advertise and all(listen.host in WILDCARDS for listen in options.listen):
        yield (
            f"clients of a standby can't connect to {options.listen[0]}: name the address at which they reach this "
            "broker with --advertise HOST:PORT"
        )
    for address in options.advertise:
        if address.host in WILDCARDS or not address.port:
            yield f"--advertise {address.authority}: clients can't connect to that: give this broker's name and port"
    if options.cache_dir is not None and options.folder is not None:
        yield "--cache-dir is for buckets: the system caches the files of a folder"
    if options.take_over and options.folder is not None:
        yield "--take-over is for buckets: stop the broker of a folder with 'opendata-queue broker stop'"
    open_to_all = next((listen.host for listen in options.listen if listen.host and listen.host not in LOOPBACK), None)
    only_certified = options.tls_client_ca is not None and options.tls_client_auth == "required"
    if open_to_all and options.users is None and not options.allow_anonymous and not only_certified:
        yield (
            f"listening on {open_to_all} without --users would let everybody in: "
            "give --users FILE, or --allow-anonymous if you want that"
        )
    if open_to_all and options.users is not None and options.tls_cert is None and not options.allow_cleartext:
        yield (
            f"listening on {open_to_all} with --users and without TLS would show secrets to the network: give "
            "--tls-cert FILE and --tls-key FILE, or --allow-cleartext if the network is trusted or has TLS itself"
        )
    if options.socket_group is not None and not any(listen.path for listen in options.listen):
        yield "--socket-group without --listen unix:PATH: there is no socket for the group"
    if (options.socket_mode or 0) & stat.S_IWOTH and options.users is None and not options.allow_anonymous:
        yield (
            f"--socket-mode {options.socket_mode:04o} without --users would let every user of this machine in: give "
            "--users FILE, or --socket-group GROUP, or --allow-anonymous if you want that"
        )
    addresses = Counter((*options.listen, *((options.metrics,) if options.metrics else ())))
    for address, count in addresses.items():
        if count > 1 and (address.path or address.port):
            yield f"{address.path or address.authority} is given twice: --listen and --metrics need different addresses"


def server_tls(options: BrokerOptions) -> ServerTls | None:
    """Return the TLS settings for clients; None without a certificate. Raise StartError if a file is not valid."""
    if options.tls_cert is None:
        for name, value in (("--tls-key", options.tls_key), ("--tls-client-ca", options.tls_client_ca)):
            if value is not None:
                raise StartError(f"{name} without --tls-cert: give the certificate, too")
        return None
    required = options.tls_client_auth == "required"
    return ServerTls(TlsFiles(options.tls_cert, options.tls_key, options.tls_client_ca, required))


def socket_access(options: BrokerOptions) -> SocketAccess:
    """Return mode and group of the Unix sockets; raise StartError if the broker's user is not in the group."""
    gid = group_id(options.socket_group) if options.socket_group is not None else None
    if options.socket_mode is not None:
        mode = options.socket_mode
    elif gid is not None:
        mode = 0o660
    else:
        mode = 0o666 if options.users is not None else 0o600
    return SocketAccess(mode, gid)


def retention_bytes(options: BrokerOptions) -> int:
    """Return the size limit of each instance; 0 means no limit. Raise StartError if the size of the disk is unknown."""
    if options.retention_bytes is not None or options.folder is None:
        return options.retention_bytes or 0
    folder = options.folder
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).total // 4
    except OSError as exc:
        raise StartError(f"the size of the disk of {folder} is unknown: {exc.strerror}") from exc


def choose_active_role(options: BrokerOptions) -> ActiveRole:
    """Return the active role for the store; raise StartError or StoreError if the store can't be used.

    A folder is locked by this call, unless the broker may become its standby.
    """
    certificate, key = options.tls_cert, options.tls_key
    settings = ActiveRoleSettings(
        standby=options.standby,
        take_over=options.take_over,
        renew_seconds=options.renew_every_seconds,
        instances=options.instance,
        tls=lambda: link_context(certificate, key),
        serves_tls=certificate is not None,
    )
    if options.folder is not None:
        return FolderActiveRole(StoreLock(options.folder), settings)
    if options.store.startswith("memory:"):
        return ActiveRole()
    return BucketActiveRole(BucketRecord(options.store), settings)


def start_faults(options: BrokerOptions, *, whole: bool = True) -> list[str]:
    """Return the errors that would prevent a startup with these options, except for a broker that already runs.

    Nothing is created or changed, and no bucket is accessed. If all options are valid (``whole``), also check the
    contradictions between them.
    """
    faults = list(contradictions(options)) if whole else []
    checks: list[Callable[[], object]] = [
        partial(server_tls, options),
        partial(socket_access, options),
        partial(retention_bytes, options),
    ]
    if options.users is not None:
        checks.append(partial(UsersFile, options.users))
    checks += [partial(check_name, name) for name in options.instance]
    checks.append(partial(_check_store, options))
    for check in checks:
        try:
            check()
        except OpenDataError as exc:
            faults.append(exc.text)
    for listen in (*options.listen, *((options.metrics,) if options.metrics else ())):
        faults += _unusable_socket(listen.path) if listen.path else _unusable_host(listen)
    return faults


def _check_store(options: BrokerOptions) -> None:
    """Raise StoreError if the broker's user can't use the store."""
    folder = options.folder
    if folder is None or folder == folder.parent:
        locate(options.store, "default", create=False)
        return
    check_file_system(folder)
    if folder.exists():
        with PrivateFolder(str(folder)) as store_folder:
            store_folder.check_entries()
    else:
        above = next(place for place in folder.parents if place.exists())
        if not above.is_dir():
            raise StoreUnwritable(f"{folder} can't be the store's folder: {above} is a file", folder=str(folder))
        if not os.access(above, os.W_OK | os.X_OK):
            raise StoreUnwritable(denied(str(folder)), folder=str(folder))


def _unusable_host(listen: Listen) -> Iterator[str]:
    try:
        infos = socket.getaddrinfo(listen.host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        yield f"{listen.authority}: the host is unknown: {exc.strerror or exc}"
        return
    if not any(_can_bind(family, address) for family, _kind, _protocol, _name, address in infos):
        yield f"{listen.authority}: {listen.host} is not an address of this machine"


def _can_bind(family: int, address: object) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind(address)  # type: ignore[arg-type]
    except OSError:
        return False
    return True


def _unusable_socket(path: str) -> Iterator[str]:
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        yield f"unix:{path}: there is no folder {folder}: make it, or choose another path"
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield f"unix:{path}: this user may not make files in {folder}"
    elif os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        yield f"unix:{path}: the path exists and is not a socket"
