"""Checks of names and arguments from clients: length, Unicode, JSON."""

from __future__ import annotations

import json
from typing import Any

from ...errors import RequestError

#: maximum length of AMQP's short strings: names, routing keys, tags
MAX_NAME_BYTES = 255
MAX_ARGUMENTS_BYTES = 60_000
MAX_ARGUMENTS_DEPTH = 20


def check_short(text: str, what: str, error: type[RequestError] = RequestError) -> None:
    """Check that an AMQP short string has at most 255 bytes; raise ``error`` if it has more."""
    if len(text) > MAX_NAME_BYTES // 4:  # a character has up to four bytes
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MAX_NAME_BYTES:
            raise error(f"the {what} has {size} bytes, the limit is {MAX_NAME_BYTES}", size=size, limit=MAX_NAME_BYTES)


def check_name(name: str, what: str) -> None:
    """Check the name of a queue or an exchange; raise RequestError if it is empty, too long, or invalid Unicode."""
    if not name:
        raise RequestError(f"the {what} name is empty: give one")
    check_short(name, f"{what} name")
    try:
        name.encode()
    except UnicodeEncodeError as exc:
        raise RequestError(f"the {what} name is not valid Unicode: {exc.reason}") from exc


def check_storable(arguments: dict[str, Any], what: str) -> None:
    """Raise RequestError if arguments are not JSON, nested too deeply, or too long for a record."""
    level: list[Any] = [arguments]
    for _ in range(MAX_ARGUMENTS_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list):
                below += value
        level = below
    if level:
        raise RequestError(f"the arguments of {what} are nested more than {MAX_ARGUMENTS_DEPTH} levels deep")
    try:
        size = len(json.dumps(arguments, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as exc:
        raise RequestError(f"the arguments of {what} can't be stored as JSON: {exc}") from exc
    if size > MAX_ARGUMENTS_BYTES:
        raise RequestError(f"the arguments of {what} have {size} bytes, the limit is {MAX_ARGUMENTS_BYTES}", size=size)
