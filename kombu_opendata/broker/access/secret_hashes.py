"""Argon2id hashes of users' secrets, for ``opendata-queue user add`` and ``hash-secret``."""

from __future__ import annotations

import base64
import os

from ...errors import RequestError

#: maximum memory of one Argon2 run; hashes made by hash_secret need 64 MiB
MAX_MEMORY_KIB = 1 << 20
#: the form of a hash made by hash_secret
_USUAL = "$argon2id$v=19$m=65536,t=3,p=4$" + "A" * 22 + "$" + "A" * 43


def is_hash(text: str) -> bool:
    """Return True if a text is a hash like those of :func:`hash_secret`, with any valid parameters."""
    from argon2 import extract_parameters
    from argon2.exceptions import InvalidHashError

    try:
        parameters = extract_parameters(text)
    except (InvalidHashError, ValueError):
        return False
    whole = all(_is_base64(part) for part in text.split("$")[-2:])
    fits = 8 * parameters.parallelism <= parameters.memory_cost <= MAX_MEMORY_KIB
    return whole and fits and parameters.salt_len >= 8 and parameters.hash_len >= 16


def decoy(like: str = "") -> str:
    """Return a hash that matches no secret; its check takes the same time as the check of the hash ``like``."""
    *parameters, salt, hashed = (like or _USUAL).split("$")
    return "$".join((*parameters, _random_like(salt), _random_like(hashed)))


def hash_secret(secret: str) -> str:
    """Return the hash of a secret for the users file; raise RequestError if the secret is empty."""
    from argon2 import PasswordHasher

    if not secret:
        raise RequestError("the secret is empty, so the user's name alone would be enough to log in: give a secret")
    return PasswordHasher().hash(secret)


def _is_base64(text: str) -> bool:
    """Return True if a text is base64 as Argon2 writes it: without padding and unused bits."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return False
    return base64.b64encode(data).decode().rstrip("=") == text


def _random_like(text: str) -> str:
    """Return the base64 of the same number of random bytes."""
    size = len(base64.b64decode(text + "=" * (-len(text) % 4)))
    return base64.b64encode(os.urandom(size)).decode().rstrip("=")
