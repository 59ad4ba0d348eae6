"""Error messages that name the next command: for a store without a broker, a path without a store, a mistyped name."""

from __future__ import annotations

import os
import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from ..local_users import sharer_of
from ..masking import masked
from .exit_codes import NO_BROKER, CommandError

if TYPE_CHECKING:
    from ..queue_client import QueueClient
    from ..url import Address

#: every database in a store's folder has a subfolder of this name
_DATABASE = "manifest"
#: name of the parameter of ``--start``
START = "starts"
#: key of the ``--url`` before the verb in the ``meta`` of a context, which its subcommands share
URL = "kombu_opendata.url"


def given_url(context: click.Context) -> str | None:
    """Return the ``--url`` of a verb, or of the groups before it."""
    url: str | None = context.params.get("url") or context.meta.get(URL)
    return url


def command(words: str, *names: str) -> str:
    """Return a command line for a shell, with quoted names."""
    separator = ["--"] if any(name.startswith("-") for name in names) else []
    return " ".join(["opendata-queue", words, *separator, *map(shlex.quote, names)])


def next_command(words: str, *names: str) -> str:
    """Return a command line for the broker of the current command: with its ``--url``, or as ``celery -A app …``."""
    context = click.get_current_context(silent=True)
    if context is not None and (url := given_url(context)):
        return command(f"{words} --url {shlex.quote(masked(url))}", *names)
    line = command(words, *names)
    app = context.find_root().params.get("app") if context is not None else None
    return f"celery -A {shlex.quote(app)} opendata{line.removeprefix('opendata-queue')}" if app else line


def is_store(folder: str) -> bool:
    """Return True if a folder contains a database; raise OSError if the folder can't be read."""
    try:
        entries = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(os.path.isdir(os.path.join(folder, entry, _DATABASE)) for entry in entries)


def no_store(folder: str) -> CommandError:
    """Return the error of a folder without a store."""
    return CommandError(
        f"there is no store at {folder}: check the path, or make one with "
        f"'opendata-queue queue create NAME --url {shlex.quote(folder)}'"
    )


def no_broker(address: Address, error: Any) -> CommandError:
    """Return the error of an address at which no broker answers."""
    from ..errors import StartError

    folder = address.folder
    if address.kind != "embedded" or isinstance(error, StartError) or sharer_of(folder):
        return CommandError(error.text, NO_BROKER)
    if not is_store(folder):
        return CommandError(f"no broker runs for {folder}, and there is no store: check the path", NO_BROKER)
    has_start = any(parameter.name == START for parameter in click.get_current_context().command.params)
    alternative = ", or add --start" if has_start else ""
    return CommandError(
        f"no broker runs for {folder}: start it with '{command('broker start', folder)}'{alternative}; "
        f"'{command('store stats', folder)}' needs none",
        NO_BROKER,
    )


def with_suggestion(client: QueueClient, error: Any) -> Any:
    """Return the error; for an unknown queue or exchange, with the most similar name."""
    if name := error.values.get("queue"):
        names = [info.name for info in client.list_queues()]
    elif name := error.values.get("exchange"):
        names = [info.name for info in client.list_exchanges()]
    else:
        return error
    close = [] if name in names else get_close_matches(name, names, n=1)
    return type(error)(f"{error.text}; did you mean {close[0]!r}?", **error.values) if close else error
