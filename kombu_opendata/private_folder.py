"""Folders that belong to this user alone.

A path does not identify the creator of the folder: any user may create ``/tmp/queue``. Client and broker therefore open
a store's folder first, check the opened folder, and open the files in it relative to that descriptor, never through a
symbolic link.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from types import TracebackType
from urllib.parse import quote

from .errors import StoreUnwritable, UnsafeFolder
from .file_system import is_full, remedy
from .local_users import WRITABLE_BY_OTHERS, is_trusted, user_name

_RIGHTS_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class PrivateFolder:
    """Context manager for a folder of this user that no other user may write to, created by :func:`make_folder`.

    Raises:
        StoreUnwritable: the folder can't be created, or this user can't use it, or it is a database in a store.
        UnsafeFolder: the folder belongs to another user, or others may write to it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        path = self.path
        try:
            make_folder(path)
            self._fd = _open_folder(path)
            self._check()
        except (FileExistsError, NotADirectoryError) as exc:
            raise StoreUnwritable(
                f"{path} can't be the store's folder: the path, or a part of it, is a file", folder=path
            ) from exc
        except PermissionError as exc:
            raise StoreUnwritable(denied(path), folder=path) from exc
        except OSError as exc:
            raise StoreUnwritable(f"the store's folder {path} can't be used: {exc.strerror}", folder=path) from exc

    def _check(self) -> None:
        status = os.fstat(self._fd)
        if status.st_uid != os.geteuid():
            volume = status.st_uid == 0 and os.access(self.path, os.W_OK)  # root created it for this user
            raise UnsafeFolder(
                f"the store's folder {self.path} belongs to {user_name(status.st_uid)}: "
                f"use a folder of your own{f', such as {self.path}/queue' if volume else ''}, or run this as that user",
                folder=self.path,
            )
        if status.st_mode & WRITABLE_BY_OTHERS:
            raise UnsafeFolder(
                f"other users may write to the store's folder {self.path} (mode {stat.S_IMODE(status.st_mode):o}): "
                f"chmod 700 {self.path}, or use another folder",
                folder=self.path,
            )
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError
        if self._is_database():
            store, instance = os.path.split(self.path)
            raise StoreUnwritable(
                f"{self.path} is the database of the instance {instance!r} in the store {store}: name the store's "
                f"folder; its broker, while it runs, has this instance at opendata://{quote(store, safe='')}"
                f"%2Fbroker.sock/{instance}",
                folder=self.path,
            )

    def _is_database(self) -> bool:
        """Return True if the folder contains SlateDB's files; in a store, each database has a separate folder."""
        try:
            return any(name.endswith(".manifest") for name in os.listdir(f"{self.path}/manifest"))
        except OSError:
            return False

    def open_file(self, name: str, flags: int) -> int:
        """Open a file of the folder and return its descriptor. A new file gets mode 0600.

        Raises:
            StoreUnwritable: the file can't be opened.
            UnsafeFolder: the file is a link or not a plain file, it belongs to another user, or others may write to it.
        """
        path = f"{self.path}/{name}"
        try:
            fd = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=self._fd)
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                raise _unsafe_file(path, "is a symbolic link") from exc
            advice = f"; {remedy(self.path)}" if is_full(exc) else ""
            raise StoreUnwritable(f"{path} can't be opened: {exc.strerror}{advice}", path=path) from exc
        status = os.fstat(fd)
        reason = ""
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            reason = "is not a plain file with one name"
        elif status.st_uid != os.geteuid():
            reason = f"belongs to {user_name(status.st_uid)}"
        elif status.st_mode & WRITABLE_BY_OTHERS:
            reason = "may be written by other users"
        if reason:
            os.close(fd)
            raise _unsafe_file(path, reason)
        return fd

    def check_entries(self) -> None:
        """Raise UnsafeFolder if an entry belongs to another user.

        Such an entry shows that other users could write to the folder before. Entries of root, such as a volume's
        ``lost+found``, are allowed.
        """
        for name in os.listdir(self._fd):
            try:
                owner = os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_uid
            except FileNotFoundError:
                continue
            if not is_trusted(owner):
                raise _unsafe_file(f"{self.path}/{name}", f"belongs to {user_name(owner)}")

    def hide_entries(self) -> None:
        """Remove the permissions of other users on the folder's entries.

        Other users may be allowed to enter the folder, to reach the broker's socket.
        """
        for name in os.listdir(self._fd):
            try:
                fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._fd)
            except OSError:  # a socket, a link, or deleted
                continue
            try:
                status = os.fstat(fd)
                if status.st_uid == os.geteuid() and status.st_mode & _RIGHTS_OF_OTHERS:
                    os.fchmod(fd, stat.S_IMODE(status.st_mode) & ~_RIGHTS_OF_OTHERS)
            finally:
                os.close(fd)

    def read_text(self, name: str) -> str:
        """Return the stripped text of a small file; empty if it can't be read."""
        try:
            fd = self.open_file(name, os.O_RDONLY)
        except StoreUnwritable:
            return ""
        with os.fdopen(fd, errors="replace") as file:
            return file.read(4096).strip()

    def replace(self, name: str, data: bytes) -> None:
        """Replace a file atomically, so that readers see the old content or the new one.

        Raise StoreUnwritable if the new file can't be opened.
        """
        new = f"{name}.new"
        self.remove(new)
        with open(self.open_file(new, os.O_WRONLY | os.O_CREAT), "wb") as file:
            file.write(data)
        os.rename(new, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def make_folder(path: str) -> None:
    """Create a folder for this user alone, unless it exists.

    Raise StoreUnwritable if its parent does not exist, as the path may be mistyped, and OSError for other reasons.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    except FileNotFoundError as exc:
        parent = nearest = os.path.dirname(path)
        if os.path.isdir(parent):
            raise  # a file system without folders, such as /proc
        while not os.path.isdir(nearest):
            nearest = os.path.dirname(nearest)
        raise StoreUnwritable(
            f"{path} can't be created, because there is no folder {parent}; the nearest one that exists is {nearest}. "
            f"Check the path, or run: mkdir -p {shlex.quote(parent)}",
            folder=path,
        ) from exc


def _open_folder(path: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    if os.path.islink(path) and os.lstat(path).st_uid in (0, os.geteuid()):
        path = os.path.realpath(path)  # this user's own link, or root's
    try:
        return os.open(path, flags)
    except OSError as exc:
        if os.path.islink(path):
            owner = user_name(os.lstat(path).st_uid)
            raise UnsafeFolder(
                f"the store's folder {path} is a symbolic link of {owner}: use a folder of your own", folder=path
            ) from exc
        raise


def _unsafe_file(path: str, why: str) -> UnsafeFolder:
    text = f"{path} {why}: it can't be trusted; find out who made it, and remove it or use another folder"
    return UnsafeFolder(text, path=path)


def denied(path: str) -> str:
    """Return the text of an error for denied access, with the owner of the path or of its nearest existing parent."""
    place = path
    while True:
        try:
            status = os.stat(place)
            break
        except OSError:
            place = os.path.dirname(place) or "/"
    if status.st_uid != os.geteuid():
        return f"permission denied on {path}: {place} belongs to {user_name(status.st_uid)}"
    mode = stat.S_IMODE(status.st_mode)
    return f"permission denied on {path}: {place} is yours and has mode {mode:03o}; chmod u+rwx {place}"
