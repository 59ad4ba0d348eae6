"""Settings of a broker's instances and connections."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...protocol.envelope import DEFAULT_MAX_MESSAGE_BYTES
from ...protocol.framing import DEFAULT_MAX_FRAME_BYTES
from ...storage.engine_settings import EngineSettings
from ..access.quotas import CONNECTION_LIMITS, INSTANCE_LIMITS
from ..access.users_file import UsersFile
from ..access.users_format import LimitsTable
from .connection_limits import ConnectionLimits
from .sockets import SocketAccess
from .tls_certificates import ServerTls


@dataclass(frozen=True)
class BrokerSettings:
    """Settings of a broker."""

    store: str  # URL of the object store
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    session_grace_seconds: float = 2.0
    restart_grace_seconds: float = 0.0  # for clients that were connected before startup
    expects_standby: bool = False  # the broker was started as one of several brokers of its store
    idle_exit_seconds: float = 0.0  # 0 means never
    heartbeat_seconds: float = 60.0  # over TCP; 0 means by the client's request
    memory_limit_bytes: int | None = None  # 0 means no limit; None if the process is not only the broker's
    users: UsersFile | None = None  # None permits all clients to connect
    tls: ServerTls | None = None
    socket_access: SocketAccess = field(default_factory=SocketAccess)
    create_instances: bool = False  # a client may name any instance
    instance_limits: LimitsTable = INSTANCE_LIMITS  # of an instance without its own limits
    connection_limits: LimitsTable = CONNECTION_LIMITS  # of each connection
    max_instances: int = 1000
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    open_telemetry: bool = False  # spans of messages
    engine: EngineSettings = field(default_factory=EngineSettings)
