"""Users of a broker: a file with one ``name:hash`` a line, hashes made by ``opendata-queue hash-secret`` (Argon2id)."""

from __future__ import annotations

from pathlib import Path

from ..errors import StartError


class UsersFile:
    """Verifies secrets against a file, which is read again when it changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = (-1, -1)
        self._hashes: dict[str, str] = {}
        self._load()

    def _load(self) -> None:
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp != self._stamp:
                lines = [line.strip() for line in self._path.read_text("utf-8").splitlines()]
                pairs = (line.partition(":") for line in lines if line and not line.startswith("#"))
                self._hashes = {name: hashed for name, _, hashed in pairs}
                self._stamp = stamp
        except OSError as exc:
            raise StartError(
                f"the users file {self._path} can't be read: {exc.strerror}", path=str(self._path)
            ) from exc

    def verify(self, user: str, secret: str) -> bool:
        """Whether this user has this secret."""
        from argon2 import PasswordHasher
        from argon2.exceptions import InvalidHashError, VerificationError

        self._load()
        hashed = self._hashes.get(user)
        if hashed is None:
            return False
        try:
            return PasswordHasher().verify(hashed, secret)
        except (VerificationError, InvalidHashError):
            return False


def hash_secret(secret: str) -> str:
    """The hash of a secret for the users file."""
    from argon2 import PasswordHasher

    return PasswordHasher().hash(secret)
