"""Argon2id hashes of users' secrets, as ``opendata-queue user add`` and ``hash-secret`` make them."""

from __future__ import annotations

import base64
import os

from ...errors import RequestError

#: memory of one Argon2 run; hashes made by hash_secret need 64 MiB
MAX_MEMORY_KIB = 1 << 20
#: what a hash made by hash_secret looks like
_USUAL = "$argon2id$v=19$m=65536,t=3,p=4$" + "A" * 22 + "$" + "A" * 43


def is_hash(text: str) -> bool:
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


def decoy(like: str = "") -> str:
    """A hash that no secret matches, and that takes as long to check as another one."""
    *parameters, salt, hashed = (like or _USUAL).split("$")
    return "$".join((*parameters, _random_like(salt), _random_like(hashed)))


def hash_secret(secret: str) -> str:
    """The hash of a secret for the users file.

    Raises:
        RequestError: the secret is empty.
    """
    from argon2 import PasswordHasher

    if not secret:
        raise RequestError("the secret is empty: whoever knows the user's name could log in")
    return PasswordHasher().hash(secret)


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
