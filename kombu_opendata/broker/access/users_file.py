"""The users file: a TOML table for each user (docs/permissions.md), reloaded when it changes."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import NamedTuple

from .file_format import InstanceTable
from .secret_hashes import decoy
from .user import User
from .users_toml import parse, wrong


class UsersFileChanges(NamedTuple):
    """The users whose tables a new file has added, removed or changed, by name."""

    added: list[str]
    removed: list[str]
    changed: list[str]

    def __str__(self) -> str:
        parts = [f"{what} {', '.join(map(repr, names))}" for what, names in self._asdict().items() if names]
        return "; ".join(parts) or "no user changed"


class UsersFile:
    """The users of a file.

    Attributes:
        users, certificates, instances: see :class:`.Parsed`.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            InvalidUsersFile: the file can't be read, other users may read it, or it is not valid.
        """
        self.path = path
        self.users: dict[str, User] = {}
        self.certificates: dict[str, User] = {}
        self.instances: dict[str, InstanceTable] = {}
        self._stamp: tuple[int, ...] = ()
        self.reload()

    def reload(self, *, always: bool = False) -> UsersFileChanges | None:
        """Read the file again if it changed, or ``always``; returns the changes, None if the file was not read.

        Raises:
            InvalidUsersFile: the file is not valid; the users stay as before. Raised once for each change.
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
        return UsersFileChanges(
            sorted(self.users.keys() - before.keys()),
            sorted(before.keys() - self.users.keys()),
            sorted(name for name, user in self.users.items() if name in before and before[name] is not user),
        )

    def hash_of(self, user: str) -> str:
        """Return the hash of a user's secret; empty if the user is unknown or has none."""
        entry = self.users.get(user)
        return entry.table.secret if entry is not None else ""

    @property
    def decoy(self) -> str:
        """A hash that matches no secret, and that takes as long to check as that of the first user."""
        return decoy(next((user.table.secret for user in self.users.values() if user.table.secret), ""))


def check_mode(path: Path, mode: int) -> None:
    """Refuse a file that every user of the machine can read.

    Raises:
        InvalidUsersFile: every user can read or write it.
    """
    if stat.S_ISREG(mode) and mode & 0o007:
        text = f"can be read or written by every user of this machine (mode {stat.S_IMODE(mode):04o})"
        raise wrong(path, f"{text}: chmod 600 {path}, or 640 with the broker's group")
