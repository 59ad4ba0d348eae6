"""The transport: Kombu's way to a broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import Empty
from typing import Any

import amqp.exceptions as amqp
from kombu.transport import virtual

from .. import url as urls
from ..client.connection_options import SECONDS, Options, check_broker_options
from ..client.session.broker_connection import BrokerConnection
from ..client.session.session import channel_of
from ..errors import ConnectionLost, OpenDataError, RequestError, RetryLater, StartError, StoreError, VersionMismatch
from ..version import __version__
from . import channel as channels
from . import connection_fields
from . import kombu_message as messages
from .amqp_errors import NotAdmitted, translate
from .celery_worker import adapt
from .connection_fields import address_of
from .event_loop import LoopReader
from .kombu_message import OutgoingMessage

PUBLISH_MODES = ("confirm", "pipeline")
#: the broker knows a session's last 1,024 publishes one by one
MAX_PIPELINE_DEPTH = 1000


class Connection(BrokerConnection):
    """A client's connection whose errors are the transport's."""

    def flush(self, timeout: float | None = None) -> None:
        try:
            super().flush(timeout)
        except OpenDataError as exc:
            raise translate(exc) from exc


class Transport(virtual.Transport):
    """Transport for ``opendata://`` URLs; see the package's page for URLs and options."""

    Channel = channels.Channel
    Connection = Connection
    Message = messages.Message

    can_parse_url = True
    default_port = urls.DEFAULT_PORT
    driver_type = "opendata"
    driver_name = "kombu-opendata"

    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct", "topic", "fanout", "headers"]),
        heartbeats=True,
    )

    # Each error of the transport is one of AMQP's as well, see .errors.
    connection_errors = (amqp.ConnectionError, OSError)
    channel_errors = (amqp.ChannelError,)
    recoverable_connection_errors = (amqp.RecoverableConnectionError, OSError)
    recoverable_channel_errors = (amqp.RecoverableChannelError,)

    #: nothing is polled
    polling_interval = None

    def __init__(self, client: Any, **kwargs: Any) -> None:
        # not the base's, which sets up polling
        self.client = client
        if client is not None:
            connection_fields.fill_in(client)
        adapt(Transport)

    def driver_version(self) -> str:
        return __version__

    # ------------------------------------------------------------ connections
    def establish_connection(self) -> BrokerConnection:
        """Connect; starts the embedded broker of a folder if nobody answers there."""
        client: Any = self.client
        try:
            connection_fields.check_alternates(client)
            connection = self.Connection(address_of(client), options_of(client))
            connection.client = client
            connection.connect()
        except (StartError, StoreError, VersionMismatch) as exc:
            if len(client.alt) > 1:  # with others to try, one that can't be had is like one that is away
                raise translate(ConnectionLost(exc.text, **exc.values)) from exc
            raise translate(exc) from exc
        except RetryLater as exc:
            raise NotAdmitted(exc.text, **exc.values) from exc
        except OpenDataError as exc:
            raise translate(exc) from exc
        return connection

    def close_connection(self, connection: BrokerConnection) -> None:
        """Say goodbye: what is not acknowledged goes back to its queues at once."""
        connection.client = None
        for channel in list(connection.channels.values()):
            channel.detach()
        try:
            connection.close()
        except OpenDataError as exc:  # publishes that nobody waited for
            raise translate(exc) from exc
        finally:
            self.unregister_from_event_loop(connection, None)

    def _collect(self, connection: BrokerConnection | None) -> None:
        if connection is not None:
            connection.client = None
            for channel in list(connection.channels.values()):
                channel.detach()
            connection.abandon()

    def verify_connection(self, connection: BrokerConnection) -> bool:
        return not connection.link.is_closed

    # ------------------------------------------------------------ channels and events
    def create_channel(self, connection: BrokerConnection) -> channels.Channel:
        return self.Channel(connection)

    def close_channel(self, channel: channels.Channel) -> None:
        channel.close()

    def drain_events(self, connection: BrokerConnection, timeout: float | None = None, **_kwargs: Any) -> None:
        """Wait for one event and hand it to its channel; raises socket.timeout."""
        for gated in connection.gated:
            gated.grant()
        try:
            if not connection.events:
                connection.drain(timeout)
            event = connection.events.popleft()
        except OpenDataError as exc:
            raise translate(exc) from exc
        except IndexError:  # another thread took it
            raise TimeoutError("no event in time") from None
        if connection.link.reconnect_thread is None and connection.session.held:
            connection.link.start_reconnect_thread()  # for as long as the callback takes
        channel = connection.channels.get(event[0] if isinstance(event, tuple) else channel_of(event))
        if channel is not None:
            channel.deliver(event)

    # ------------------------------------------------------------ as a virtual transport
    @property
    def channels(self) -> list[channels.Channel]:
        """The open channels."""
        connection = self.client._connection
        return [] if connection is None else list(connection.channels.values())

    @property
    def state(self) -> virtual.BrokerState:
        """The broker's exchanges and bindings as they are now: a copy."""
        with self.client.channel() as channel:
            return channel.state

    @property
    def cycle(self) -> Any:
        """What drains one of the open channels at each call of its ``get``."""
        return self.Cycle(self._drain_channel, self.channels, Empty)

    @property
    def _callbacks(self) -> dict[str, Callable[[OutgoingMessage], Any]]:
        """For each queue that is consumed from, what hands a message that virtual transports store to a consumer."""
        return {
            queue: partial(channel.hand_in, tag)
            for channel in self.channels
            for tag, queue in channel._tag_to_queue.items()
        }

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {}

    # ------------------------------------------------------------ heartbeats
    def get_heartbeat_interval(self, connection: BrokerConnection) -> float:
        """Seconds in which the broker is heard of at least once; 0 where the kernel tells (a Unix socket)."""
        welcome = connection.link.welcome
        return welcome.heartbeat_ms / 1000 if welcome is not None else 0.0

    def heartbeat_check(self, connection: BrokerConnection, rate: int = 2) -> None:
        """Look whether the broker is still heard of. Nothing is sent: a broker asks the client's kernel."""
        try:
            connection.io.check_alive()
        except OpenDataError as exc:
            raise translate(exc) from exc

    # ------------------------------------------------------------ Celery's event loop
    def register_with_event_loop(self, connection: BrokerConnection, loop: Any) -> None:
        try:
            LoopReader(connection, loop)
        except OpenDataError as exc:
            raise translate(exc) from exc

    def unregister_from_event_loop(self, connection: BrokerConnection, loop: Any) -> None:
        if isinstance(connection.link.observer, LoopReader):
            connection.link.observer.stop()

    def on_readable(self, connection: BrokerConnection, loop: Any) -> None:
        if isinstance(connection.link.observer, LoopReader):
            connection.link.observer.on_readable()

    # ------------------------------------------------------------ about
    def qos_semantics_matches_spec(self, connection: BrokerConnection) -> bool:
        return True

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The broker's URL, its secret masked unless asked for."""
        client: Any = self.client
        try:
            address = address_of(client)
            if include_password and callable(client.password):
                address = replace(address, user=client.userid or "", secret=client.password())
            return address.as_uri(include_password, mask)
        except OpenDataError:
            return urls.masked(str(uri), mask)


class TLSTransport(Transport):
    """Transport for ``opendatas://`` URLs."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        if not client.ssl:
            client.ssl = True


def options_of(client: Any) -> Options:
    """The settings that a kombu.Connection carries; transport options that are not ours are Kombu's own."""
    given = client.transport_options or {}
    mode = given.get("publish_mode") or "confirm"
    if mode not in PUBLISH_MODES:
        raise RequestError(f"publish_mode {mode!r} is none of {', '.join(PUBLISH_MODES)}", option="publish_mode")
    numbers: dict[str, Any] = {name: float(given[name]) for name in SECONDS if given.get(name) is not None}
    return Options(
        name=str(given.get("consumer_name") or ""),
        user=client.userid or "",
        secret=client.password if callable(client.password) else str(client.password or ""),
        tls=client.ssl or None,
        connect_timeout=float(client.connect_timeout or Options.connect_timeout),
        heartbeat=float(client.heartbeat or 0),
        broker_options=check_broker_options(given.get("broker_options")),
        pipelined=mode == "pipeline",
        pipeline_depth=_depth_of(given.get("pipeline_depth")),
        **numbers,
    )


def _depth_of(value: Any) -> int:
    if value is None:
        return Options.pipeline_depth
    if type(value) is not int or not 1 <= value <= MAX_PIPELINE_DEPTH:
        raise RequestError(f"pipeline_depth {value!r} is no number from 1 to {MAX_PIPELINE_DEPTH}")
    return value
