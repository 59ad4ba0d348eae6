"""Which broker a command is about: ``--url``, the app of ``celery -A app``, or the environment.

A command that looks never starts a broker. One that changes something starts a folder's broker, as any client does, if
there is a store; only ``queue create`` makes a new store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .exit_codes import NO_BROKER, Failure

if TYPE_CHECKING:
    from ..client.connection_options import Options
    from ..client.session.broker_connection import BrokerConnection
    from ..queue_client import QueueClient
    from ..url import Address

F = TypeVar("F", bound=Callable[..., Any])
ENVIRONMENT = "OPENDATA_QUEUE_URL"
CA_ENVIRONMENT = "OPENDATA_QUEUE_CA"
#: the folder of a store has one of these
_DATABASE = "manifest"


def target_options(command: F) -> F:
    """``--url`` and what belongs to it."""
    url = click.option(
        "--url", metavar="URL|FOLDER", help=f"the broker, or a store's folder; default: the app's, or ${ENVIRONMENT}"
    )
    ca = click.option(
        "--tls-ca", metavar="FILE", type=click.Path(exists=True, dir_okay=False), envvar=CA_ENVIRONMENT,
        help="CA certificates (PEM) for opendatas:// brokers",
    )  # fmt: skip
    return url(ca(command))


def json_option(command: F) -> F:
    """``--json``."""
    return click.option("-j", "--json", "as_json", is_flag=True, help="print JSON, with times in UTC")(command)


def yes_option(command: F) -> F:
    """``--yes``."""
    return click.option("-y", "--yes", is_flag=True, help="don't ask")(command)


@dataclass(frozen=True)
class Place:
    """A broker, and how to connect to it."""

    address: Address
    options: Options


class Target:
    """The broker that is meant; of an app's list for failover, the first that answers."""

    def __init__(self, places: list[Place]) -> None:
        self._places = places

    @property
    def folder(self) -> str:
        """The folder of the (first) broker; empty if it has none."""
        return self._places[0].address.folder

    @property
    def address(self) -> Address:
        return self._places[0].address

    # ------------------------------------------------------------------ clients
    @contextmanager
    def client(self, *, looks: bool = False, creates: bool = False) -> Iterator[QueueClient]:
        """A queue client. It starts no broker if it only looks.

        Raises:
            Failure: no broker runs, or there is no store.
        """
        from ..errors import NotFound
        from ..queue_client import QueueClient

        def make(place: Place) -> QueueClient:
            settings = {field.name: getattr(place.options, field.name) for field in fields(place.options)}
            return QueueClient(place.address.as_uri(include_secret=True), **settings)

        with self._opened(make, lambda client: client._calls.connect(), looks, creates) as client:
            try:
                yield client
            except NotFound as exc:
                raise _with_suggestion(client, exc) from exc

    @contextmanager
    def connection(self, *, looks: bool = False) -> Iterator[BrokerConnection]:
        """A plain connection, for calls that the queue client has not."""
        from ..client.session.broker_connection import BrokerConnection

        def make(place: Place) -> BrokerConnection:
            return BrokerConnection(place.address, place.options)

        with self._opened(make, lambda connection: connection.connect(), looks, False) as connection:
            yield connection

    @contextmanager
    def _opened(self, make: Callable[[Place], Any], greet: Callable[[Any], None], looks: bool, creates: bool) -> Any:
        from ..errors import ConnectionLost

        for place in (places := [self._allowed(place, looks, creates) for place in self._places]):
            opened = make(place)
            try:
                greet(opened)
            except ConnectionLost as exc:
                opened.close()
                if place is places[-1]:
                    raise _no_broker(place, exc) from exc
                continue
            except BaseException:
                opened.close()
                raise
            try:
                yield opened
            finally:
                opened.close()
            return

    def _allowed(self, place: Place, looks: bool, creates: bool) -> Place:
        if looks:
            return replace(place, options=replace(place.options, may_start=False, reconnect_timeout=0.0))
        address = place.address
        if address.kind == "embedded" and not creates and not _is_store(address.folder):
            raise Failure(
                f"there is no store at {address.folder}: check the path, or make one with "
                f"'opendata-queue queue create NAME --url {address.folder}'"
            )
        return place


def _with_suggestion(client: QueueClient, error: Any) -> Any:
    """The error, with the queue or exchange that was probably meant if there is none of that name."""
    if name := error.values.get("queue"):
        known = [info.name for info in client.list_queues()]
    elif name := error.values.get("exchange"):
        known = [info.name for info in client.list_exchanges()]
    else:
        return error
    close = [] if name in known else get_close_matches(name, known, n=1)
    return type(error)(f"{error.text}; did you mean {close[0]!r}?", **error.values) if close else error


def _is_store(folder: str) -> bool:
    """Whether a folder has a database. One that can't be looked into is an OSError."""
    try:
        entries = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(os.path.isdir(os.path.join(folder, entry, _DATABASE)) for entry in entries)


def _no_broker(place: Place, error: Any) -> Failure:
    from ..errors import StartError

    text = error.text
    if place.address.kind == "embedded" and not isinstance(error, StartError):
        folder = place.address.folder
        if _is_store(folder):
            text += f"; to look at the store without one: opendata-queue store stats {folder}"
        else:
            text = f"no broker runs for {folder}, and there is no store: check the path"
    return Failure(text, NO_BROKER)


# ---------------------------------------------------------------------- choosing
def find(url: str | None, tls_ca: str | None = None) -> Target:
    """The target of the command that runs.

    Raises:
        click.UsageError: nothing says which.
        InvalidURL: the URL is none.
    """
    context = click.get_current_context()
    app = None if url else getattr(context.obj, "app", None)
    if app is not None:
        return Target(_of_app(app))
    url = url or os.environ.get(ENVIRONMENT)
    if not url:
        raise click.UsageError(f"which broker? Give --url (opendata://…, or a store's folder), or set {ENVIRONMENT}.")
    return Target([_place(url, tls_ca)])


def _place(url: str, tls_ca: str | None) -> Place:
    from ..client.connection_options import Options
    from ..url import embedded, parse

    address = parse(url) if "://" in url else embedded(os.path.abspath(url))
    tls = {"ca_certs": tls_ca} if tls_ca else None
    return Place(address, Options(name="opendata-queue", tls=tls))


def _of_app(app: Any) -> list[Place]:
    from ..transport.connection_fields import address_of
    from ..transport.transport import options_of

    try:
        connection = app.connection_for_write()
    except KeyError as exc:  # Kombu's "No such transport", with what was probably meant
        raise Failure(f"the app's broker_url can't be used: {exc.args[0]}") from exc
    found = []
    for url in connection.alt or [None]:
        one = app.connection_for_write(url) if url is not None else connection
        if one.transport.driver_type != "opendata":
            raise Failure(f"the app's broker is {one.as_uri()}: it is no opendata:// URL")
        found.append(Place(address_of(one), options_of(one)))
    return found


# ---------------------------------------------------------------------- completion
def completion(names_of: Callable[[QueueClient], list[str]]) -> Callable[..., list[str]]:
    """Completes names: those that begin so and can be typed, if a broker runs that says them at once."""

    def complete(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        try:
            place = _place(context.params.get("url") or os.environ[ENVIRONMENT], context.params.get("tls_ca"))
            quick = replace(place, options=replace(place.options, connect_timeout=0.5))
            with Target([quick]).client(looks=True) as client:
                names = names_of(client)
            return [name for name in names if name.startswith(incomplete) and name.isprintable()]
        except Exception:
            return []  # a line that is being typed gets no error

    return complete


@completion
def complete_queues(client: QueueClient) -> list[str]:
    """Names of queues."""
    return [info.name for info in client.list_queues()]


def queue_argument(command: F) -> F:
    """A queue's name, completed."""
    return click.argument("queue", shell_complete=complete_queues)(command)
