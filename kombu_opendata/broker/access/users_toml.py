"""Decodes and checks the text of a users file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import fields

from ...errors import InvalidUsersFile
from .file_format import InstanceTable, Limits, Patterns, UserTable
from .rights import PatternError
from .secret_hashes import is_hash
from .user import User

_Table = TypeVar("_Table", UserTable, InstanceTable)

_SHOWN = 100
#: a line of the form that earlier versions read
_OLD_LINE = re.compile(rb"(?m)^[^#=\[\n]*:\s*\$argon2")
_UNKNOWN_KEY = re.compile(r"unknown field `([^`]*)`")
_KEYS = [field.encode_name for table in (UserTable, Patterns, Limits) for field in fields(table)]
_LINE_OF_TOML_ERROR = re.compile(r"at line (\d+)")


class Parsed(NamedTuple):
    """What a users file says.

    Attributes:
        users: by name.
        certificates: the users that log in by certificate, by a name in it.
        instances: the tables of instances, by name.
    """

    users: dict[str, User]
    certificates: dict[str, User]
    instances: dict[str, InstanceTable]


def parse(path: Path, data: bytes, known: Mapping[str, User]) -> Parsed:
    """Decode a file.

    Args:
        path: for errors.
        known: users of an earlier file; those who did not change keep the decisions made so far.

    Raises:
        InvalidUsersFile: it is not valid.
    """
    tables = _load(path, data)
    unknown = sorted(tables.keys() - {"users", "instances"})
    if unknown:
        raise wrong(path, f"has a table {unknown[0][:_SHOWN]!r}: it has [users.NAME] and [instances.NAME] only")
    found = Parsed({}, {}, {})
    for name, given in _tables(path, tables, "users").items():
        table = _convert(path, given, UserTable, f"user {name[:_SHOWN]!r}")
        _check_login(path, name, table)
        old = known.get(name)
        found.users[name] = user = old if old is not None and old.table == table else _user(path, name, table)
        for certificate in table.certificates:
            other = found.certificates.setdefault(certificate, user)
            if other is not user:
                text = f"gives the certificate {certificate[:_SHOWN]!r} to {other.name!r} and to {name!r}"
                raise wrong(path, text)
    if not found.users:
        raise wrong(path, "names no user, so nobody could log in: opendata-queue user add NAME")
    for name, given in _tables(path, tables, "instances").items():
        found.instances[name] = _convert(path, given, InstanceTable, f"instance {name[:_SHOWN]!r}")
    return found


def wrong(path: Path, what: str, line: int = 0) -> InvalidUsersFile:
    """The error for a file; ``line`` is 0 for the file as a whole."""
    where = f"line {line} of the users file {path}" if line else f"the users file {path}"
    return InvalidUsersFile(f"{where} {what}", path=str(path), line=line)


def _load(path: Path, data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as exc:
        raise wrong(path, "is not UTF-8", data.count(b"\n", 0, exc.start) + 1) from exc
    except tomllib.TOMLDecodeError as exc:
        old = _OLD_LINE.search(data)
        if old is not None:
            text = (
                "has the form name:hash, which is no longer read: write a table [users.NAME] with secret = "
                '"HASH" and the rights of each user, see docs/permissions.md; opendata-queue user add makes one'
            )
            raise wrong(path, text, data.count(b"\n", 0, old.start()) + 1) from exc
        line = _LINE_OF_TOML_ERROR.search(str(exc))
        raise wrong(path, f"is not valid TOML: {exc}", int(line[1]) if line else 0) from exc


def _tables(path: Path, tables: dict[str, Any], kind: str) -> dict[str, Any]:
    found = tables.get(kind, {})
    if not isinstance(found, dict):
        raise wrong(path, f"has {kind} = …: write a table [{kind}.NAME] for each")
    if "" in found:
        raise wrong(path, f"has an empty name in {kind}")
    return found


def _convert(path: Path, given: Any, type: type[_Table], what: str) -> _Table:
    try:
        return msgspec.convert(given, type)
    except msgspec.ValidationError as exc:
        raise wrong(path, f"is wrong about {what}: {exc}{_suggestion(str(exc))}") from exc


def _suggestion(text: str) -> str:
    """The key that was probably meant, if the text says that there is no such key."""
    unknown = _UNKNOWN_KEY.search(text)
    close = get_close_matches(unknown[1], _KEYS, n=1) if unknown else []
    return f": do you mean {close[0]}?" if close else ""


def _check_login(path: Path, name: str, table: UserTable) -> None:
    if not table.secret and not table.certificates:
        raise wrong(path, f"gives user {name[:_SHOWN]!r} neither a secret nor certificates, so nobody can log in")
    if table.secret and not is_hash(table.secret):
        text = f"has no Argon2 hash as the secret of user {name[:_SHOWN]!r}: make one with opendata-queue hash-secret"
        raise wrong(path, text)


def _user(path: Path, name: str, table: UserTable) -> User:
    try:
        return User(name, table)
    except PatternError as exc:
        raise wrong(path, f"is wrong about user {name[:_SHOWN]!r}: {exc}") from exc
