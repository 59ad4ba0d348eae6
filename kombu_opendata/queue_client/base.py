"""Base class of all groups of calls."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from ..client.client_clock import SYSTEM, ClientClock
from ..client.connection_options import Options, check_broker_options
from .connections import Calls, ClientConnections


class Base:
    """Connections of a client. Mixins use ``self.calls.call(message)``."""

    def __init__(self, url: str, *, name: str = "", clock: ClientClock = SYSTEM, **options: Any) -> None:
        """Create a client, which opens its connections when they are needed.

        Args:
            url: the broker's URL, as in Celery's ``broker_url``; ``opendata:///folder`` starts a broker if none runs.
            name: the name of this client in the broker's lists of workers and holders; by default ``host:pid``.
            clock: the source of time.
            options: settings of its connections, the fields of
                :class:`kombu_opendata.client.connection_options.Options`; times are in seconds.

        Raises:
            InvalidURL: the URL is not valid; the text has the reason.
            RequestError: ``broker_options`` are not valid.
        """
        options["broker_options"] = check_broker_options(options.get("broker_options"))
        self.connections = ClientConnections(url, Options(name=name, **options), clock=clock)
        self.calls = Calls(self.connections)

    def cancellable(self) -> Self:
        """Return this client, with the same connections, for one call that can be cancelled."""
        client = object.__new__(type(self))  # for each call of an asynchronous client: copy.copy takes ten times longer
        client.__dict__.update(self.__dict__, calls=Calls(self.connections))
        return client

    def _now_ms(self) -> int:
        return int(1000 * self.connections.clock.wall())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the sessions. Leases of reads last until their timeouts; messages of iterators return to their queues."""
        self.connections.close()
