"""Editor of a users file, which preserves comments and order, checks the new file and replaces the file atomically."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, String

from ...errors import RequestError
from .users_file import ENCODING, Parsed, parse, wrong
from .users_format import Patterns

_NEW_MODE = 0o600


class UsersEditor:
    """Document of a users file."""

    def __init__(self, path: Path, data: bytes | None) -> None:
        """Read the document; raise InvalidUsersFile if the document is not valid."""
        self._path = path
        self._edited: set[str] = set()
        #: the contents before the changes; None if there is no file yet
        self.parsed: Parsed | None = parse(path, data, {}) if data is not None else None
        try:
            self._document = tomlkit.parse((data or b"").decode(ENCODING))
        except TOMLKitError as exc:  # nothing that tomllib accepted
            raise wrong(path, f"can't be edited: {exc}") from exc

    def check(self, after: Parsed) -> None:
        """Raise InvalidUsersFile if the edit also changed other users: the file has a form that can't be edited."""
        before = self.parsed.users if self.parsed is not None else {}
        for name, user in before.items():
            if name not in self._edited and (name not in after.users or after.users[name].table != user.table):
                raise wrong(self._path, "has a form that this command can't edit: write each user as a separate table")

    @property
    def text(self) -> str:
        return tomlkit.dumps(self._document)

    def add(self, name: str) -> None:
        """Add a user without rights; raise RequestError if the user exists."""
        if self.parsed is not None and name in self.parsed.users:
            raise RequestError(f"there is a user {name!r} already: --new-secret gives it another secret", name=name)
        if "users" not in self._document:
            self._document["users"] = tomlkit.table(is_super_table=True)
        self._document["users"][name] = tomlkit.table()

    def remove(self, name: str) -> None:
        """Remove a user. Raises RequestError if there is no such user."""
        self.user(name)
        del self._document["users"][name]

    def user(self, name: str) -> Any:
        """Return the table of a user for changes. Raises RequestError if there is no such user."""
        users: Any = self._document.get("users", {})
        if name not in users:
            user_names = ", ".join(sorted(users)) or "none"
            raise RequestError(f"there is no user {name!r} in the file; it has: {user_names}", name=name)
        self._edited.add(name)
        return users[name]

    def set_secret(self, name: str, hashed: str) -> None:
        """Set the hash of a user's secret; an empty hash removes it."""
        table = self.user(name)
        if hashed:
            table["secret"] = tomlkit.string(hashed)
        else:
            table.pop("secret", None)

    def set_words(self, name: str, key: str, add: tuple[str, ...], remove: tuple[str, ...] = ()) -> None:
        """Add words to a list of a user (``roles``, ``certificates``) and remove others."""
        table = self.user(name)
        words = [str(word) for word in table.get(key, []) if word not in remove]
        words += [word for word in dict.fromkeys(add) if word not in words]
        if words:
            table[key] = words
        else:
            table.pop(key, None)

    def permit(self, name: str, instance: str, patterns: dict[str, str]) -> None:
        """Set patterns of a user in an instance; other patterns stay."""
        table = self.user(name)
        if "instances" not in table:
            table["instances"] = tomlkit.table(is_super_table=True)
        instances = table["instances"]
        if instance not in instances:
            is_inline = any(isinstance(item, InlineTable) for item in (instances, *instances.values()))
            instances[instance] = tomlkit.inline_table() if is_inline else tomlkit.table()
        for right in Patterns.__struct_fields__:
            if right in patterns:
                instances[instance][right] = _text(patterns[right])

    def forbid(self, name: str, instance: str) -> None:
        """Remove the entry of a user for an instance. Raises RequestError if there is none."""
        table = self.user(name)
        if instance not in table.get("instances", {}):
            raise RequestError(f"user {name!r} has no entry for instance {instance!r}", name=name, instance=instance)
        del table["instances"][instance]
        if not table["instances"]:
            del table["instances"]


def _text(value: str) -> String:
    """Return a pattern as a literal string, in which backslashes have no special meaning."""
    literal = "'" not in value and value.isprintable()
    return tomlkit.string(value, literal=literal)


@contextmanager
def edited(path: Path, *, create: bool = False) -> Iterator[UsersEditor]:
    """Edit a file in a ``with`` block, and replace the file at its end.

    With ``create``, a missing file is created, which only its owner may read.

    Raises:
        RequestError: the file is missing, or belongs to another user.
        InvalidUsersFile: the file is not valid, or would not be valid after the edit.
        OSError: the file can't be read or replaced.
    """
    path = path.resolve()  # the target of a symbolic link, not the link
    lock = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = path.stat() if path.exists() else None
        if before is None and not create:
            raise RequestError(f"there is no users file {path}: opendata-queue user add makes one", path=str(path))
        editor = UsersEditor(path, path.read_bytes() if before is not None else None)
        yield editor
        data = editor.text.encode()
        editor.check(parse(path, data, {}))
        _replace(path, data, before)
        os.fsync(lock)
    finally:
        os.close(lock)


def _replace(path: Path, data: bytes, before: os.stat_result | None) -> None:
    """Write a temporary file with the same owner and at most the same permissions, and rename it."""
    if before is not None and os.geteuid() not in (0, before.st_uid):
        raise RequestError(f"the users file {path} belongs to another user: edit it as that one", path=str(path))
    fd, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            if before is not None:
                os.fchown(fd, before.st_uid, before.st_gid)
                os.fchmod(fd, stat.S_IMODE(before.st_mode) & 0o640 | _NEW_MODE)
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(new, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(new)
        raise
