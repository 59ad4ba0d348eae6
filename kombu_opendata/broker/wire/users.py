"""The users file: one ``name:hash`` a line, with Argon2id hashes made by ``opendata-queue hash-secret``.

Empty lines and lines that begin with ``#`` are ignored.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path

from ...errors import InvalidUsersFile, RequestError

#: memory of one Argon2 run; hashes made by hash_secret need 64 MiB
MAX_MEMORY_KIB = 1 << 20


class UsersFile:
    """The users of a file, which is read again after it changed.

    Attributes:
        hashes: by the user's name.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            InvalidUsersFile: it can't be read, or a line is not valid.
        """
        self.path = path
        self.hashes: dict[str, str] = {}
        self._stamp: tuple[int, ...] = ()
        self.reload()

    def reload(self) -> bool:
        """Read the file again if it changed; returns whether it did.

        Raises:
            InvalidUsersFile: it is not valid, and the users stay as before. Raised once for each change.
        """
        try:
            stat = self.path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            data = self.path.read_bytes()
        except OSError as exc:
            if self._stamp == (exc.errno or 0,):
                return False
            self._stamp = (exc.errno or 0,)
            raise self._wrong(f"can't be read: {exc.strerror}") from exc
        self.hashes = self._parse(data)
        return True

    @property
    def decoy(self) -> str:
        """A hash that no secret matches, and that takes as long to check as the first user's."""
        *parameters, salt, hashed = next(iter(self.hashes.values())).split("$")
        return "$".join((*parameters, _random_like(salt), _random_like(hashed)))

    def _parse(self, data: bytes) -> dict[str, str]:
        hashes: dict[str, str] = {}
        for number, line in enumerate(data.splitlines(), 1):
            try:
                text = line.decode().strip()
            except UnicodeDecodeError as exc:
                raise self._wrong("is not UTF-8", number) from exc
            if not text or text.startswith("#"):
                continue
            name, colon, hashed = (part.strip() for part in text.partition(":"))
            if not colon or not name:
                raise self._wrong("has no name and hash with a colon in between", number)
            if name in hashes:
                raise self._wrong(f"names user {name[:100]!r} a second time", number)
            if not _is_hash(hashed):
                raise self._wrong(
                    f"has no Argon2 hash for user {name[:100]!r}: make one with opendata-queue hash-secret", number
                )
            hashes[name] = hashed
        if not hashes:
            raise self._wrong("names no user, so nobody could log in: add a line name:hash")
        return hashes

    def _wrong(self, what: str, line: int = 0) -> InvalidUsersFile:
        where = f"line {line} of the users file {self.path}" if line else f"the users file {self.path}"
        return InvalidUsersFile(f"{where} {what}", path=str(self.path), line=line)


def _is_hash(text: str) -> bool:
    """Whether this is a hash as :func:`hash_secret` makes it, with any valid parameters."""
    from argon2 import extract_parameters
    from argon2.exceptions import InvalidHashError

    try:
        parameters = extract_parameters(text)
    except (InvalidHashError, ValueError):
        return False
    whole = all(_is_base64(part) for part in text.split("$")[-2:])
    fits = 8 * parameters.parallelism <= parameters.memory_cost <= MAX_MEMORY_KIB
    return whole and fits and parameters.salt_len >= 8 and parameters.hash_len >= 16


def _is_base64(text: str) -> bool:
    """Whether this is base64 as Argon2 writes it: without padding and unused bits."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return False
    return base64.b64encode(data).decode().rstrip("=") == text


def _random_like(text: str) -> str:
    """Base64 of the same number of random bytes."""
    size = len(base64.b64decode(text + "=" * (-len(text) % 4)))
    return base64.b64encode(os.urandom(size)).decode().rstrip("=")


def hash_secret(secret: str) -> str:
    """The hash of a secret for the users file.

    Raises:
        RequestError: the secret is empty.
    """
    from argon2 import PasswordHasher

    if not secret:
        raise RequestError("the secret is empty: whoever knows the user's name could log in")
    return PasswordHasher().hash(secret)
