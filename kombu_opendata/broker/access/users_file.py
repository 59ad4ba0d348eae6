"""The users file: a TOML table for each user (docs/permissions.md), read again when it changed."""

from __future__ import annotations

import re
import stat
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ...errors import InvalidUsersFile
from .file_format import InstanceTable, UserTable
from .rights import PatternError
from .secret_hashes import decoy, is_hash
from .user import User

_Table = TypeVar("_Table", UserTable, InstanceTable)

_SHOWN = 100
#: a line of the form that earlier versions read
_OLD_LINE = re.compile(rb"(?m)^[^#=\[\n]*:\s*\$argon2")
_LINE_OF_TOML_ERROR = re.compile(r"at line (\d+)")


class UsersFile:
    """The users of a file.

    Attributes:
        users: by name.
        instances: the tables of instances, by name.
        certificates: the users that log in by certificate, by a name in it.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            InvalidUsersFile: it can't be read, others may read it, or it is not valid.
        """
        self.path = path
        self.users: dict[str, User] = {}
        self.instances: dict[str, InstanceTable] = {}
        self.certificates: dict[str, User] = {}
        self._stamp: tuple[int, ...] = ()
        self.reload()

    def reload(self, *, always: bool = False) -> bool:
        """Read the file again if it changed, or ``always``; returns whether it did.

        Raises:
            InvalidUsersFile: it is not valid, and the users stay as before. Raised once for each change.
        """
        try:
            found = self.path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)
            if stamp == self._stamp and not always:
                return False
            self._stamp = stamp
            data = self.path.read_bytes()
        except OSError as exc:
            if self._stamp == (exc.errno or 0,) and not always:
                return False
            self._stamp = (exc.errno or 0,)
            raise self._wrong(f"can't be read: {exc.strerror}") from exc
        self._check_mode(found.st_mode)
        self._parse(data)
        return True

    def hash_of(self, user: str) -> str:
        """The hash of a user's secret; empty if the user is unknown or has none."""
        found = self.users.get(user)
        return found.table.secret if found is not None else ""

    @property
    def decoy(self) -> str:
        """A hash that no secret matches, and that takes as long to check as the first user's."""
        return decoy(next((user.table.secret for user in self.users.values() if user.table.secret), ""))

    # ------------------------------------------------------------------ checks
    def _check_mode(self, mode: int) -> None:
        if stat.S_ISREG(mode) and mode & 0o007:
            raise self._wrong(
                f"can be read or written by every user of this machine (mode {stat.S_IMODE(mode):04o}): "
                f"chmod 600 {self.path}, or 640 with the broker's group"
            )

    def _parse(self, data: bytes) -> None:
        tables = self._load(data)
        unknown = sorted(tables.keys() - {"users", "instances"})
        if unknown:
            raise self._wrong(f"has a table {unknown[0][:_SHOWN]!r}: it has [users.NAME] and [instances.NAME] only")
        users: dict[str, User] = {}
        certificates: dict[str, User] = {}
        for name, given in self._tables(tables, "users").items():
            table = self._convert(given, UserTable, f"user {name[:_SHOWN]!r}")
            self._check_secret(name, table)
            old = self.users.get(name)  # keeps the decisions made so far if nothing changed
            users[name] = user = old if old is not None and old.table == table else self._user(name, table)
            for certificate in table.certificates:
                other = certificates.setdefault(certificate, user)
                if other is not user:
                    raise self._wrong(f"gives the certificate {certificate[:_SHOWN]!r} to {other.name!r} and {name!r}")
        if not users:
            raise self._wrong("names no user, so nobody could log in: opendata-queue user add NAME")
        instances = {
            name: self._convert(given, InstanceTable, f"instance {name[:_SHOWN]!r}")
            for name, given in self._tables(tables, "instances").items()
        }
        self.users, self.certificates, self.instances = users, certificates, instances

    def _load(self, data: bytes) -> dict[str, Any]:
        try:
            return tomllib.loads(data.decode())
        except UnicodeDecodeError as exc:
            raise self._wrong("is not UTF-8", data.count(b"\n", 0, exc.start) + 1) from exc
        except tomllib.TOMLDecodeError as exc:
            old = _OLD_LINE.search(data)
            if old is not None:
                raise self._wrong(
                    "has the form name:hash, which is no longer read: write a table [users.NAME] with secret = "
                    '"HASH" and the rights of each user, see docs/permissions.md; opendata-queue user add makes one',
                    data.count(b"\n", 0, old.start()) + 1,
                ) from exc
            line = _LINE_OF_TOML_ERROR.search(str(exc))
            raise self._wrong(f"is not valid TOML: {exc}", int(line[1]) if line else 0) from exc

    def _tables(self, tables: dict[str, Any], kind: str) -> dict[str, Any]:
        found = tables.get(kind, {})
        if not isinstance(found, dict):
            raise self._wrong(f"has {kind} = …: write a table [{kind}.NAME] for each")
        if "" in found:
            raise self._wrong(f"has an empty name in {kind}")
        return found

    def _convert(self, given: Any, type: type[_Table], what: str) -> _Table:
        try:
            return msgspec.convert(given, type)
        except msgspec.ValidationError as exc:
            raise self._wrong(f"is wrong about {what}: {exc}") from exc

    def _check_secret(self, name: str, table: UserTable) -> None:
        if not table.secret and not table.certificates:
            raise self._wrong(f"gives user {name[:_SHOWN]!r} neither a secret nor certificates, so nobody can log in")
        if table.secret and not is_hash(table.secret):
            raise self._wrong(
                f"has no Argon2 hash as the secret of user {name[:_SHOWN]!r}: make one with opendata-queue hash-secret"
            )

    def _user(self, name: str, table: UserTable) -> User:
        try:
            return User(name, table)
        except PatternError as exc:
            raise self._wrong(f"is wrong about user {name[:_SHOWN]!r}: {exc}") from exc

    def _wrong(self, what: str, line: int = 0) -> InvalidUsersFile:
        where = f"line {line} of the users file {self.path}" if line else f"the users file {self.path}"
        return InvalidUsersFile(f"{where} {what}", path=str(self.path), line=line)
