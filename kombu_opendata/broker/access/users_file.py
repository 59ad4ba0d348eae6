"""Users file: a TOML table for each user (docs/permissions.md), reloaded when it changes."""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import fields

from ...errors import AccessRefused, InvalidUsersFile
from ...protocol.messages import Reloaded
from .rights import PatternError, User
from .secret_hashes import decoy, is_hash
from .users_format import InstanceTable, LimitsTable, Patterns, UserTable

_Table = TypeVar("_Table", UserTable, InstanceTable)

#: UTF-8, with or without a byte order mark
ENCODING = "utf-8-sig"
_SHOWN = 100
#: a line in the format of earlier versions
_OLD_LINE = re.compile(rb"(?m)^[^#=\[\n]*:\s*\$argon2")
_UNKNOWN_KEY = re.compile(r"unknown field `([^`]*)`")
_KEYS = [field.encode_name for table in (UserTable, Patterns, LimitsTable) for field in fields(table)]
_LINE_OF_TOML_ERROR = re.compile(r"at line (\d+)")


class UsersFile:
    """Users of a file."""

    def __init__(self, path: Path) -> None:
        """Read the file; raise InvalidUsersFile if it can't be read, others may read it, or it is not valid."""
        self.path = path
        #: the contents of the file, as in :class:`Parsed`
        self.users: dict[str, User] = {}
        self.certificates: dict[str, User] = {}
        self.instances: dict[str, InstanceTable] = {}
        self._stamp: tuple[int, ...] = ()
        self.reload()

    def reload(self, *, always: bool = False) -> Reloaded | None:
        """Read the file again if it changed, or ``always``; return the changes, None if the file was not read.

        An invalid file changes no users, and raises InvalidUsersFile once for each change of the file.
        """
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode)
            if stamp == self._stamp and not always:
                return None
            self._stamp = stamp
            data = self.path.read_bytes()
        except OSError as exc:
            if self._stamp == (exc.errno or 0,) and not always:
                return None
            self._stamp = (exc.errno or 0,)
            raise wrong(self.path, f"can't be read: {exc.strerror}") from exc
        check_mode(self.path, status.st_mode)
        before = self.users
        self.users, self.certificates, self.instances = parse(self.path, data, before)
        return Reloaded(
            0,
            sorted(self.users.keys() - before.keys()),
            sorted(before.keys() - self.users.keys()),
            sorted(name for name, user in self.users.items() if name in before and before[name] is not user),
            certificates=False,
        )

    def hash_of(self, user: str) -> str:
        """Return the hash of a user's secret; empty if the user is unknown or has none."""
        entry = self.users.get(user)
        return entry.table.secret if entry is not None else ""

    @property
    def decoy(self) -> str:
        """Hash that matches no secret; its check takes the same time as the check of the first user's hash."""
        return decoy(next((user.table.secret for user in self.users.values() if user.table.secret), ""))

    def user_by_certificate(self, names: tuple[str, ...], user: str, *, has_secret: bool) -> str:
        """Return the user that a verified certificate logs in as; empty if the user and secret must be checked.

        ``names`` are the names in the certificate, the most specific first. Raise AccessRefused if the certificate
        belongs to another user than the requested ``user``, or to no user. A client with a secret may have a
        certificate that belongs to no user, unless the requested user has certificates.
        """
        owners = [self.certificates[name].name for name in names if name in self.certificates]
        names_text = ", ".join(name[:_SHOWN] for name in names) or "without names"
        if not owners and not has_secret:
            raise AccessRefused(
                f"the client's certificate ({names_text}) is no user's: add one of its names to the certificates of a "
                "user in the broker's users file, or log in with a user and a secret"
            )
        user_entry = self.users.get(user)
        if user and user not in owners and (owners or (user_entry is not None and user_entry.table.certificates)):
            raise AccessRefused(
                f"the client's certificate ({names_text}) is not one of user {user[:_SHOWN]!r}: use that user's "
                "certificate, or leave the user out of the URL",
                user=user[:_SHOWN],
            )
        return "" if has_secret else user or owners[0]


def check_mode(path: Path, mode: int) -> None:
    """Raise InvalidUsersFile if every user of the machine can read or write the file."""
    if stat.S_ISREG(mode) and mode & 0o007:
        text = f"can be read or written by every user of this machine (mode {stat.S_IMODE(mode):04o})"
        raise wrong(path, f"{text}: chmod 600 {path}, or 640 with the broker's group")


# ---------------------------------------------------------------------- decoding
class Parsed(NamedTuple):
    """Contents of a users file."""

    users: dict[str, User]  # by name
    certificates: dict[str, User]  # the users that log in by certificate, by a name in the certificate
    instances: dict[str, InstanceTable]  # the tables of instances, by name


def parse(path: Path, data: bytes, known: Mapping[str, User]) -> Parsed:
    """Decode the file at ``path``, or raise InvalidUsersFile with all errors.

    Unchanged users of an earlier file (``known``) are reused with their cached decisions.
    """
    tables = _load(path, data)
    faults: list[str] = []
    unknown = sorted(tables.keys() - {"users", "instances"})
    faults += [f"has a table {name[:_SHOWN]!r}: it has [users.NAME] and [instances.NAME] only" for name in unknown]
    parsed = Parsed({}, {}, {})
    user_tables = _tables(tables, "users", faults)
    for name, user_table in user_tables.items():
        table = _convert(user_table, UserTable, f"user {name[:_SHOWN]!r}", faults)
        user = _user(name, table, known.get(name), faults) if table is not None else None
        if user is not None:
            parsed.users[name] = user
            _add_certificates(parsed.certificates, user, faults)
    if not user_tables and not faults:
        faults.append("names no user, so no login is possible: opendata-queue user add NAME")
    for name, instance_table in _tables(tables, "instances", faults).items():
        limits = _convert(instance_table, InstanceTable, f"instance {name[:_SHOWN]!r}", faults)
        if limits is not None:
            parsed.instances[name] = limits
    if faults:
        several = "\n  ".join([f"has {len(faults)} faults:", *(f"it {fault}" for fault in faults)])
        raise wrong(path, faults[0] if len(faults) == 1 else several)
    return parsed


def wrong(path: Path, what: str, line: int = 0) -> InvalidUsersFile:
    """Return the error for a file; ``line`` is 0 for the file as a whole."""
    where = f"line {line} of the users file {path}" if line else f"the users file {path}"
    return InvalidUsersFile(f"{where} {what}", path=str(path), line=line)


def _load(path: Path, data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode(ENCODING))
    except UnicodeDecodeError as exc:
        place = data.count(b"\n", 0, exc.start) + 1
        raise wrong(path, "is not UTF-8: save it with that encoding", place) from exc
    except (ValueError, RecursionError) as exc:  # of wrong TOML, numbers with too many digits, and deep nesting
        old = _OLD_LINE.search(data)
        if old is not None:
            text = (
                "has the form name:hash, which is no longer read: write a table [users.NAME] with secret = "
                '"HASH" and the rights of each user, see docs/permissions.md; opendata-queue user add makes one'
            )
            raise wrong(path, text, data.count(b"\n", 0, old.start()) + 1) from exc
        line = _LINE_OF_TOML_ERROR.search(str(exc))
        raise wrong(path, f"is not valid TOML: {exc}", int(line[1]) if line else 0) from exc


def _tables(tables: dict[str, Any], kind: str, faults: list[str]) -> dict[str, Any]:
    entries = tables.get(kind, {})
    if not isinstance(entries, dict):
        faults.append(f"has {kind} = …: write a table [{kind}.NAME] for each")
        return {}
    if "" in entries:
        faults.append(f"has an empty name in {kind}")
    return entries


def _convert(value: Any, type: type[_Table], what: str, faults: list[str]) -> _Table | None:
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as exc:
        # msgspec stops at the first error, but every key has a default, so the keys are converted separately
        entries = [{key: single} for key, single in value.items()] if isinstance(value, dict) and len(value) > 1 else []
        before = len(faults)
        for entry in entries:
            _convert(entry, type, what, faults)
        if len(faults) == before:
            faults.append(f"is wrong about {what}: {exc}{_suggestion(str(exc))}")
        return None


def _suggestion(text: str) -> str:
    """Suggest the key that was probably meant, if the text reports an unknown key."""
    unknown = _UNKNOWN_KEY.search(text)
    close = get_close_matches(unknown[1], _KEYS, n=1) if unknown else []
    return f": do you mean {close[0]}?" if close else ""


def _user(name: str, table: UserTable, old: User | None, faults: list[str]) -> User | None:
    """Return the user of a table: ``old`` if nothing changed; None if the table is wrong."""
    if not table.secret and not table.certificates:
        faults.append(f"gives user {name[:_SHOWN]!r} neither a secret nor certificates, so this user can't log in")
    elif table.secret and not is_hash(table.secret):
        text = f"has no Argon2 hash as the secret of user {name[:_SHOWN]!r}: make one with opendata-queue hash-secret"
        faults.append(text)
    try:
        return old if old is not None and old.table == table else User(name, table)
    except PatternError as exc:
        faults.append(f"is wrong about user {name[:_SHOWN]!r}: {exc}")
        return None


def _add_certificates(certificates: dict[str, User], user: User, faults: list[str]) -> None:
    for certificate in user.table.certificates:
        owner = certificates.setdefault(certificate, user)
        if owner is not user:
            faults.append(f"gives the certificate {certificate[:_SHOWN]!r} to {owner.name!r} and to {user.name!r}")
