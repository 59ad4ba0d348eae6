"""Target of a command: the broker from ``--url``, from the app of ``celery -A app``, or from the environment.

A command that only reads starts no broker unless it has ``--start``. A command that changes something starts a folder's
broker, as any client does, if there is a store; only ``queue create`` makes a new store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

import click

from ..local_users import sharer_of
from .exit_codes import CommandError, require_confirmation
from .hints import START, URL, given_url, is_store, no_broker, no_store, with_suggestion
from .output import Reply

if TYPE_CHECKING:
    from ..client.connection_options import Options
    from ..queue_client import QueueClient
    from ..url import Address

Command = Callable[..., Any]
ENVIRONMENT = "OPENDATA_QUEUE_URL"
_URL_HELP = f"the broker, or a store's folder; default: the app's, or ${ENVIRONMENT}"
#: the options of TLS: for the ending of each, its environment variable, its key in Kombu's ``ssl``, and its help
_TLS_OPTIONS = {
    "ca": ("OPENDATA_QUEUE_CA", "ca_certs", "CA certificates (PEM) for opendatas:// brokers"),
    "cert": ("OPENDATA_QUEUE_CERT", "certfile", "this client's certificate (PEM), for brokers that want one"),
    "key": ("OPENDATA_QUEUE_KEY", "keyfile", "its private key (PEM), if it is not in that file"),
}


def accept_url(group: click.Group) -> None:
    """Accept ``--url`` also before a verb of this group."""

    def store_url(context: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value:
            context.meta[URL] = value

    group.params.append(
        click.Option(["--url"], metavar="URL|FOLDER", help=_URL_HELP, callback=store_url, expose_value=False)
    )


def _take_tls(parameters: dict[str, Any]) -> dict[str, str]:
    """Remove the options of TLS from a command's parameters, and return the files by their keys in Kombu's ``ssl``."""
    files = {known: parameters.pop(f"tls_{name}", None) for name, (_, known, _) in _TLS_OPTIONS.items()}
    return {name: file for name, file in files.items() if file}


# ---------------------------------------------------------------------- decorators of commands
def target_options(command: Command) -> Command:
    """Add ``--url`` and the options of TLS, which the command receives as its ``target``."""

    @wraps(command)
    def with_target(url: str | None, place: str | None = None, starts: bool = False, **parameters: Any) -> Any:
        url = place or url or given_url(click.get_current_context())
        return command(target=Target(url, _take_tls(parameters), starts=starts), **parameters)

    wrapped: Command = with_target
    for name, (variable, _, text) in reversed(_TLS_OPTIONS.items()):
        file = click.Path(exists=True, dir_okay=False)
        wrapped = click.option(f"--tls-{name}", metavar="FILE", type=file, envvar=variable, help=text)(wrapped)
    return click.option("--url", metavar="URL|FOLDER", help=_URL_HELP)(wrapped)


json_option = click.option("-j", "--json", "as_json", is_flag=True, help="print JSON, with times in UTC")
yes_option = click.option("-y", "--yes", is_flag=True, help="don't ask")
start_option = click.option(
    "--start",
    START,
    is_flag=True,
    help="start the folder's broker if none runs; it ends after a minute without clients",
)


def prints(command: Callable[..., Reply | None]) -> Command:
    """Print the reply of a command, with ``--json`` as JSON."""

    @wraps(command)
    def printed(as_json: bool, **parameters: Any) -> None:
        reply = command(**parameters)
        if reply is not None:
            reply.print(as_json)

    return json_option(printed)


def at_target(command: Callable[..., Reply | None]) -> Command:
    """Call a command with the ``target`` of ``--url`` and the options of TLS, and print its reply."""
    return target_options(prints(command))


def reads_at_target(command: Callable[..., Reply | None]) -> Command:
    """Do the same as :func:`at_target`, with ``--start``: for commands that only read."""
    return at_target(start_option(command))


def changes(command: Callable[..., Reply | None]) -> Command:
    """Call a command with a client, which is its first argument, and print its reply."""
    return target_options(_with_client(command, read_only=False))


def reads(command: Callable[..., Reply | None]) -> Command:
    """Do the same as :func:`changes`, with ``--start``: for commands that only read."""
    return target_options(start_option(_with_client(command, read_only=True)))


def asks_running(command: Callable[..., Reply | None]) -> Command:
    """Do the same as :func:`changes` for a command that never starts a broker."""
    return target_options(_with_client(command, read_only=True))


def _with_client(command: Callable[..., Reply | None], *, read_only: bool) -> Command:
    """Pass a client to a command, and print the reply before the client is closed: printing may read more."""

    @wraps(command)
    def connected(target: Target, as_json: bool, **parameters: Any) -> None:
        with target.client(read_only=read_only) as client:
            reply = command(client, **parameters)
            if reply is not None:
                reply.print(as_json)

    return json_option(connected)


def asks_always(command: Command) -> Command:
    """Refuse to connect without ``--yes`` if there is no terminal: for commands that ask in any case."""

    @wraps(command)
    def checked(yes: bool, **parameters: Any) -> Any:
        require_confirmation(yes)
        return command(yes=yes, **parameters)

    return yes_option(checked)


@dataclass(frozen=True)
class BrokerTarget:
    """A broker, and the options of the connections to it."""

    address: Address
    options: Options


class Target:
    """The broker of a command; if an app lists several for failover, the first that answers.

    The URL is read at the first access, so that a command can check its other arguments first.
    """

    def __init__(self, url: str | None = None, tls: Mapping[str, str] | None = None, *, starts: bool = False) -> None:
        self._url = url
        self._tls = tls
        self.starts = starts

    @cached_property
    def _places(self) -> list[BrokerTarget]:
        """The brokers to try, in order.

        Raises:
            click.UsageError: no option, app or variable names a broker.
            InvalidURL: the URL is not valid.
        """
        app = None if self._url else getattr(click.get_current_context().obj, "app", None)
        if app is not None:
            return _places_of(app)
        url = self._url or os.environ.get(ENVIRONMENT)
        if not url:
            raise click.UsageError(
                f"which broker? Give --url (opendata://…, or a store's folder), or set {ENVIRONMENT}."
            )
        return [_place(url, self._tls)]

    @property
    def folder(self) -> str:
        """The folder of the (first) broker; empty if it has none."""
        return self.address.folder

    @property
    def address(self) -> Address:
        return self._places[0].address

    @property
    def place(self) -> BrokerTarget:
        """The (first) broker, and the options of the connections to it."""
        return self._places[0]

    @contextmanager
    def client(self, *, read_only: bool = False, creates: bool = False, **options: Any) -> Iterator[QueueClient]:
        """Open a queue client; raise CommandError if no broker runs, or there is no store.

        Args:
            read_only: start a broker only with ``--start``.
            creates: the command may make a new store.
            options: options of the connection, in place of those of the target.
        """
        from ..errors import NotFound

        client = self._connected([self._allowed(place, read_only, creates) for place in self._places], options)
        try:
            yield client
        except NotFound as exc:
            raise with_suggestion(client, exc) from exc
        finally:
            client.close()

    def _connected(self, places: list[BrokerTarget], options: dict[str, Any]) -> QueueClient:
        """Return a client of the first broker that answers."""
        from ..errors import ConnectionLost
        from ..queue_client import QueueClient

        for place in places:
            settings = {field.name: getattr(place.options, field.name) for field in fields(place.options)} | options
            client = QueueClient(place.address.as_uri(include_secret=True), **settings)
            try:
                client.connections.connect()
            except BaseException as exc:
                client.close()
                if not isinstance(exc, ConnectionLost):
                    raise
                if place is places[-1]:
                    raise no_broker(place.address, exc) from exc
            else:
                break
        return client

    def _allowed(self, place: BrokerTarget, read_only: bool, creates: bool) -> BrokerTarget:
        if read_only and not self.starts:
            return replace(place, options=replace(place.options, may_start=False, reconnect_timeout=0.0))
        folder = place.address.folder
        if place.address.kind == "embedded" and not creates and not is_store(folder) and not sharer_of(folder):
            raise no_store(folder)
        return place


def _place(url: str, tls: Mapping[str, str] | None) -> BrokerTarget:
    from ..client.connection_options import Options
    from ..url import embedded, parse

    address = parse(url) if "://" in url else embedded(os.path.abspath(url))
    return BrokerTarget(address, Options(name="opendata-queue", tls=tls or None))


def _places_of(app: Any) -> list[BrokerTarget]:
    from ..transport.connection_fields import address_of
    from ..transport.transport import options_of

    try:
        connection = app.connection_for_write()
    except KeyError as exc:  # Kombu's "No such transport", with a suggestion
        raise CommandError(f"the app's broker_url can't be used: {exc.args[0]}") from exc
    targets = []
    for url in connection.alt or [None]:
        candidate = app.connection_for_write(url) if url is not None else connection
        if candidate.transport.driver_type != "opendata":
            raise CommandError(f"the app's broker is {candidate.as_uri()}: that is not an opendata:// URL")
        targets.append(BrokerTarget(address_of(candidate), options_of(candidate)))
    return targets


# ---------------------------------------------------------------------- completion
def completion(names_of: Callable[[QueueClient], list[str]]) -> Callable[..., list[str]]:
    """Return a completion of names; it completes nothing if no broker answers immediately."""

    def complete(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        try:
            place = _place(given_url(context) or os.environ[ENVIRONMENT], _take_tls(dict(context.params)))
            target = Target()
            target._places = [replace(place, options=replace(place.options, connect_timeout=0.5))]
            with target.client(read_only=True) as client:
                names = names_of(client)
            return [name for name in names if name.startswith(incomplete) and name.isprintable()]
        except Exception:
            return []  # no errors while a line is being typed

    return complete


@completion
def complete_queues(client: QueueClient) -> list[str]:
    """Return the names of queues."""
    return [info.name for info in client.list_queues()]


@completion
def complete_exchanges(client: QueueClient) -> list[str]:
    """Return the names of exchanges."""
    return [info.name for info in client.list_exchanges()]


@completion
def complete_clients(client: QueueClient) -> list[str]:
    """Return the names of workers and other clients."""
    return [worker.name for worker in client.workers()]


def _places(metavar: str) -> Command:
    return click.argument("place", required=False, metavar=metavar)


#: the broker, in place of ``--url``
place_argument, folder_argument = _places("[URL|FOLDER]"), _places("[FOLDER]")
queue_argument = click.argument("queue", shell_complete=complete_queues)
exchange_argument = click.argument("exchange", shell_complete=complete_exchanges)
#: the names of any number of queues
queues_argument = click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queues)
