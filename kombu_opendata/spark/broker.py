"""How the driver reaches the broker: one connection for declarations and for the job's commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kombu import Connection

import kombu_opendata  # noqa: F401 - makes the broker URL known

from ..client.staging import StagingClient
from ..errors import RequestError
from ..url import masked


@dataclass(frozen=True)
class BrokerAccess:
    """Where the broker is and how to connect. Picklable; its repr shows no secret.

    Attributes:
        url: an ``opendata`` URL.
        transport_options: as Kombu's.
        ssl: Kombu's ``ssl``: True, a mapping, or False.
    """

    url: str = field(repr=False)
    transport_options: dict[str, Any] = field(default_factory=dict, repr=False)
    ssl: Any = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("opendata://", "opendatas://", "opendata+memory://")):
            raise RequestError(
                f"tasks can be submitted to this package's brokers only, not to {masked(self.url)!r}: use a broker URL "
                "such as opendata:///folder or opendata://host:5677"
            )

    @classmethod
    def of_app(cls, app: Any) -> BrokerAccess:
        """What an app publishes to."""
        with app.connection_for_write() as connection:
            url = connection.as_uri(include_password=True)
            return cls(url, dict(connection.transport_options or {}), connection.ssl)

    @contextmanager
    def connect(self) -> Iterator[Broker]:
        """A connection to the broker, closed on the way out.

        Raises:
            ConnectionLost: the broker does not answer.
        """
        with Connection(self.url, transport_options=self.transport_options, ssl=self.ssl) as connection:
            yield Broker(connection)


class Broker:
    """An open connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.staging = StagingClient(connection.connection)

    def declare(self, entities: Iterable[Any]) -> None:
        """Declare kombu's queues and exchanges, as a publish would."""
        channel = self._connection.default_channel
        for entity in entities:
            entity(channel).declare()
