"""The settings that a broker's options come to."""

from __future__ import annotations

import shutil

from ...configuration.addresses import LOOPBACK, WILDCARDS
from ...configuration.options import BrokerOptions
from ...errors import StartError
from ...protocol.framing import FRAME_ROOM_BYTES
from ...storage.engine import EngineSettings
from ...storage.slatedb.slate_settings import SlateSettings
from ..access.users_file import UsersFile
from ..wire.broker_settings import BrokerSettings
from ..wire.certificates import TlsFiles
from ..wire.connection_limits import ConnectionLimits
from ..wire.server_tls import ServerTls


def broker_settings(options: BrokerOptions) -> BrokerSettings:
    """The settings of a broker with these options.

    Raises:
        StartError: options contradict each other, or a file can't be read.
    """
    if options.standby and not options.advertise and all(listen.host in WILDCARDS for listen in options.listen):
        raise StartError(
            f"clients can't be told to connect to {options.listen[0]}: say with --advertise HOST:PORT where they "
            "reach this broker"
        )
    open_to_all = [listen.host for listen in options.listen if listen.host and listen.host not in LOOPBACK]
    tls = _tls(options)
    only_certified = tls is not None and tls.files.client_ca is not None and tls.files.clients_need_certificates
    if open_to_all and options.users is None and not options.allow_anonymous and not only_certified:
        raise StartError(
            f"listening on {open_to_all[0]} without --users would let everybody in: "
            "give --users FILE, or --allow-anonymous if you want that"
        )
    if open_to_all and options.users is not None and tls is None and not options.allow_cleartext:
        raise StartError(
            f"listening on {open_to_all[0]} with --users and without TLS would show secrets to the network: give "
            "--tls-cert FILE and --tls-key FILE, or --allow-cleartext if the network is trusted or has TLS itself"
        )
    return BrokerSettings(
        store=options.store,
        max_message_bytes=options.max_message_bytes,
        max_frame_bytes=options.max_message_bytes + FRAME_ROOM_BYTES,
        idle_exit_seconds=options.idle_exit_seconds,
        heartbeat_seconds=options.heartbeat_seconds,
        users=UsersFile(options.users) if options.users is not None else None,
        tls=tls,
        create_instances=options.create_instances,
        connections=ConnectionLimits(options.max_connections, greeting_seconds=options.greeting_timeout_seconds),
        engine=EngineSettings(
            sync=not options.no_sync,
            retention_interval_seconds=options.maintain_every_seconds,
            slow_commit_seconds=options.slow_commit_seconds,
            slate=SlateSettings(metrics=options.metrics is not None),
            retention_bytes=_retention_bytes(options),
            history=options.history_days > 0,
            history_retention_seconds=86_400 * options.history_days,
            log_retention_seconds=options.log_retention_seconds,
        ),
    )


def _tls(options: BrokerOptions) -> ServerTls | None:
    if options.tls_cert is None:
        for name, given in (("--tls-key", options.tls_key), ("--tls-client-ca", options.tls_client_ca)):
            if given is not None:
                raise StartError(f"{name} without --tls-cert: give the certificate, too")
        return None
    required = options.tls_client_auth == "required"
    return ServerTls(TlsFiles(options.tls_cert, options.tls_key, options.tls_client_ca, required))


def _retention_bytes(options: BrokerOptions) -> int:
    if options.retention_bytes is not None or options.folder is None:
        return options.retention_bytes or 0
    place = options.folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).total // 4
    except OSError as exc:
        raise StartError(f"the size of the disk of {place} is unknown: {exc.strerror}") from exc
