"""Kombu transport: connections, channels, events, heartbeats, and the options of a connection."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import Empty
from typing import Any

import amqp.exceptions as amqp
from kombu.transport import virtual
from kombu.utils.imports import symbol_by_name

from .. import url as urls
from ..client.connection_options import (
    SECONDS,
    TRANSPORT_OPTIONS,
    Options,
    check_names,
    read_values,
    report_tls,
    report_unused,
)
from ..client.session.broker_connection import BrokerConnection
from ..client.session.session_link import LinkState
from ..errors import ConnectionLost, OpenDataError, RetryLater, StartError, StoreError, VersionMismatch
from ..masking import masked
from ..version import __version__
from . import channel as channels
from . import connection_fields
from . import kombu_message as messages
from .amqp_errors import NotAdmitted, translate, translated
from .connection_fields import address_of
from .event_loop import LoopReader
from .kombu_message import OutgoingMessage

_CLOSED = LinkState.CLOSED
_PLACE = "transport options"


class Connection(BrokerConnection):
    """Client connection that raises the transport's errors."""

    def flush(self, timeout: float | None = None) -> None:
        with translated:
            super().flush(timeout)


class Transport(virtual.Transport):
    """Transport for ``opendata://`` URLs; :mod:`kombu_opendata.transport` describes URLs and options."""

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

    # Each error of the transport is also one of AMQP's, see amqp_errors.py.
    connection_errors = (amqp.ConnectionError, OSError)
    channel_errors = (amqp.ChannelError,)
    recoverable_connection_errors = (amqp.RecoverableConnectionError, OSError)
    recoverable_channel_errors = (amqp.RecoverableChannelError,)

    #: nothing is polled
    polling_interval = None
    #: function that is called in a process with Celery's worker; a name, because its module imports the transport
    worker_adapter = "kombu_opendata.celery_integration.worker:adapt"

    def __init__(self, client: Any, **kwargs: Any) -> None:
        # The base's constructor would set up polling.
        self.client = client
        if client is not None:
            connection_fields.fill_in(client)
        if "celery.worker.consumer.tasks" in sys.modules:
            symbol_by_name(self.worker_adapter)(Transport)  # type: ignore[no-untyped-call]

    def driver_version(self) -> str:
        return __version__

    # ------------------------------------------------------------ connections
    def establish_connection(self) -> BrokerConnection:
        """Connect; start the embedded broker of a folder if it does not run."""
        client: Any = self.client
        try:
            connection_fields.check_alternates(client)
            address, options = address_of(client), options_of(client)
            report_tls("broker_use_ssl", options, [address])
            if client.login_method:
                report_unused("broker_login_method", "users log in by a secret or a certificate")
            connection = self.Connection(address, options)
            connection.client = client
            connection.connect()
        except (StartError, StoreError, VersionMismatch) as exc:
            if len(client.alt) > 1:  # if there are other URLs to try, treat this one as unreachable
                raise translate(ConnectionLost(exc.text, **exc.values)) from exc
            raise translate(exc) from exc
        except RetryLater as exc:
            raise NotAdmitted(exc.text, **exc.values) from exc
        except OpenDataError as exc:
            raise translate(exc) from exc
        return connection

    def close_connection(self, connection: BrokerConnection) -> None:
        """End the session: unacknowledged messages return to their queues immediately."""
        connection.client = None
        for channel in list(connection.channels.values()):
            channel.detach()
        try:
            connection.close()
        except OpenDataError as exc:  # some publishes were not confirmed
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
        return connection.link.state is not _CLOSED

    # ------------------------------------------------------------ channels and events
    def create_channel(self, connection: BrokerConnection) -> channels.Channel:
        return self.Channel(connection)

    def close_channel(self, channel: channels.Channel) -> None:
        channel.close()

    def drain_events(self, connection: BrokerConnection, timeout: float | None = None, **_kwargs: Any) -> None:
        """Wait for one event and pass it to its channel; raise socket.timeout if there is none."""
        for gated in connection.gated:
            gated.grant()
        try:
            if not connection.events:
                connection.drain(timeout)
            event = connection.events.popleft()
        except OpenDataError as exc:
            raise translate(exc) from exc
        except IndexError:  # another thread took the event
            raise TimeoutError("no event in time") from None
        if connection.link.reconnect_thread is None and connection.session.held:
            connection.link.start_reconnect_thread()  # to resume while the callback runs
        channel = connection.channels.get(event.channel)
        if channel is not None:
            channel.deliver(event)

    # ------------------------------------------------------------ as a virtual transport
    @property
    def channels(self) -> list[channels.Channel]:
        """Open channels."""
        connection = self.client._connection
        return [] if connection is None else list(connection.channels.values())

    @property
    def state(self) -> virtual.BrokerState:
        """Copy of the broker's current exchanges and bindings."""
        with self.client.channel() as channel:
            return channel.state

    @property
    def cycle(self) -> Any:
        """Object whose ``get`` drains the open channels in turn, one at each call."""
        return self.Cycle(self._drain_channel, self.channels, Empty)

    @property
    def _callbacks(self) -> dict[str, Callable[[OutgoingMessage], Any]]:
        """Functions by queue; each passes a message in the form of virtual transports to a consumer of the queue."""
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
        """Return the seconds between the broker's heartbeats.

        0 means a Unix socket, which needs no heartbeats: the kernel closes it when the broker dies.
        """
        welcome = connection.link.welcome
        return welcome.heartbeat_ms / 1000 if welcome is not None else 0.0

    def heartbeat_check(self, connection: BrokerConnection, rate: int = 2) -> None:
        """Check that the broker is alive. The client sends no heartbeats: its kernel answers the broker's probes."""
        with translated:
            connection.io.check_alive()

    # ------------------------------------------------------------ Celery's event loop
    def register_with_event_loop(self, connection: BrokerConnection, loop: Any) -> None:
        with translated:
            LoopReader(connection, loop)

    def unregister_from_event_loop(self, connection: BrokerConnection, loop: Any) -> None:
        if isinstance(connection.link.observer, LoopReader):
            connection.link.observer.stop()

    def on_readable(self, connection: BrokerConnection, loop: Any) -> None:
        if isinstance(connection.link.observer, LoopReader):
            connection.link.observer.on_readable()

    # ------------------------------------------------------------ information
    def qos_semantics_matches_spec(self, connection: BrokerConnection) -> bool:
        return True

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the broker's URL; its secret is masked unless ``include_password`` is set."""
        client: Any = self.client
        try:
            address = address_of(client)
            if include_password and callable(client.password):
                address = replace(address, user=client.userid or "", secret=client.password())
            return address.as_uri(include_password, mask)
        except OpenDataError:
            return masked(str(uri), mask)


class TLSTransport(Transport):
    """Transport for ``opendatas://`` URLs."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        if not client.ssl:
            client.ssl = True


def options_of(client: Any) -> Options:
    """Return the settings of a kombu.Connection.

    Raises:
        RequestError: a transport option is unknown, or its value is invalid.
    """
    configured = client.transport_options or {}
    check_names(_PLACE, configured, TRANSPORT_OPTIONS)
    values = read_values(_PLACE, configured)
    same = (*SECONDS, "pipeline_depth", "task_outcomes", "broker_options")
    return Options(
        name=str(values.get("consumer_name", "")),
        user=client.userid or "",
        secret=client.password if callable(client.password) else str(client.password or ""),
        tls=client.ssl or None,
        connect_timeout=float(client.connect_timeout or Options.connect_timeout),
        heartbeat=float(client.heartbeat or 0),
        pipelined=values.get("publish_mode") == "pipeline",
        **{name: values[name] for name in same if name in values},
    )
