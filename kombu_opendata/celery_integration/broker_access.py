"""Access to the broker of a job: one connection for declarations, for the commit, and for calls about the job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypedDict

from celery import Celery
from celery.app.utils import find_app
from kombu.connection import Connection
from kombu.entity import Queue

import kombu_opendata  # noqa: F401 - makes the broker URL known

from ..client.staging_client import StagingClient
from ..errors import NotFound, RequestError
from ..masking import masked
from ..protocol.messages import JobInfo
from ..staging.job import StagingTarget
from ..url import did_you_mean, parse


def new_plain_app() -> Any:
    """Return an app without settings: tasks go to the queue ``celery``, as JSON. It does not connect."""
    return Celery("opendata-spark", broker="opendata+memory://none", set_as_current=False)


plain_app = cache(new_plain_app)


def load_app(path: str) -> Any:
    """Return the app at ``module:attribute``, as ``celery -A`` finds it; raise RequestError if there is none."""
    try:
        return find_app(path)
    except (ImportError, AttributeError) as exc:
        raise RequestError(f"no Celery app at {path!r} ({exc}): ship its module with --py-files", app=path) from exc


@dataclass(frozen=True)
class BrokerAccess:
    """Broker and settings of a connection, as Kombu names them. Picklable; the repr shows no secrets."""

    url: str = field(repr=False)
    transport_options: dict[str, Any] = field(default_factory=dict, repr=False)
    ssl: Any = field(default=False, repr=False)
    #: settings of the store's bucket, of those in :data:`.bucket_credentials.SETTINGS`
    bucket: dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("opendata://", "opendatas://", "opendata+memory://")):
            raise RequestError(
                f"tasks can only be submitted to this package's brokers, not to {masked(self.url)!r}: use a broker URL "
                f"such as opendata:///folder or opendata://host:5677{did_you_mean(self.url.partition('://')[0])}"
            )

    @property
    def instance(self) -> str:
        return parse(self.url.split(";")[0]).instance

    def staging_target(self) -> StagingTarget:
        """Return the target for batches of jobs, to which this host may have no access."""
        with self.connect() as broker:
            return broker.staging.staging_target()

    def store_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``read_table`` for the broker's store, to which this host may have no access."""
        store = self.staging_target().url.rsplit("/", 1)[0]
        return {"store": store, "instance": self.instance, "bucket": self.bucket}

    def committed_job(self, job_id: str | None) -> JobInfo | None:
        """Return the job, if it was committed before.

        Without an id, only check that the broker accepts jobs, because Spark would hide its error in a traceback.
        """
        if job_id is None:
            self.staging_target()
            return None
        with self.connect() as broker:
            job = broker.staging.job_status(job_id)
        return None if job.state == "unknown" else job

    @contextmanager
    def connect(self, **defaults: Any) -> Iterator[JobBroker]:
        """Yield a connection, which is closed at the end of the block; raise ConnectionLost if no broker answers.

        Args:
            defaults: transport options that are used unless the user has set them.
        """
        options = {"transport_options": {**defaults, **self.transport_options}, "ssl": self.ssl}
        with Connection(self.url, **options) as connection:  # type: ignore[no-untyped-call]
            yield JobBroker(connection)


class JobBroker:
    """Broker of a job, with the calls about jobs as ``staging``."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.staging = StagingClient(connection.connection)
        self.call = connection.connection.call

    def check(self, entities: Iterable[Any]) -> None:
        """Raise PreconditionFailed if a queue or exchange exists with other arguments; none is created."""
        for entity in entities:
            bound = entity(self._connection.default_channel)
            declare = bound.queue_declare if hasattr(entity, "queue_arguments") else bound.declare
            with suppress(NotFound):
                declare(passive=True)
                declare()

    def create_queues(self, names: Iterable[str]) -> None:
        """Create the queues that do not exist."""
        channel = self._connection.default_channel
        for name in names:
            try:
                channel.queue_declare(name, passive=True)
            except NotFound:
                self.declare([Queue(name)])  # type: ignore[no-untyped-call]

    def declare(self, entities: Iterable[Any]) -> None:
        """Declare Kombu's queues and exchanges, as a publish does."""
        channel = self._connection.default_channel
        for entity in entities:
            entity(channel).declare()


class BrokerArguments(TypedDict, total=False):
    """Arguments that name a broker.

    Attributes:
        broker_url: the broker's URL, if no app is given.
        app: a Celery app that names the broker, or its ``module:attribute``.
        transport_options: Celery's ``broker_transport_options``, with ``broker_url``.
    """

    broker_url: str | None
    app: Any
    transport_options: Mapping[str, Any] | None


def access_of(
    broker_url: str | None = None, app: Any = None, transport_options: Mapping[str, Any] | None = None
) -> BrokerAccess:
    """Return the access to the broker of a URL, or of an app, given as an object or as ``module:attribute``.

    Raises:
        RequestError: both or neither are given, or the broker is another package's.
    """
    if (broker_url is None) == (app is None):
        raise RequestError("name the broker: either broker_url or app")
    if transport_options is not None and not isinstance(transport_options, Mapping):
        text = f"transport_options is {transport_options!r:.200} and must map names to values"
        raise RequestError(text, option="transport_options")
    if app is None:
        return BrokerAccess(str(broker_url), dict(transport_options or {}))
    if transport_options:
        raise RequestError("transport_options go with broker_url; an app has its own", option="transport_options")
    if isinstance(app, str):
        app = load_app(app)
    if not hasattr(app, "conf"):
        raise RequestError(f"app is {app!r:.200} and must be a Celery app, or its module:attribute", option="app")
    urls = app.conf.broker_write_url or app.conf.broker_url or ""
    url = urls if isinstance(urls, str) else ";".join(urls)
    return BrokerAccess(url, dict(app.conf.broker_transport_options or {}), app.conf.broker_use_ssl or False)
