"""Users files for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from argon2 import PasswordHasher

CHEAP = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


def user_table(
    name: str,
    secret: str = "",
    instances: Mapping[str, Mapping[str, str]] | None = None,
    *,
    hashed: str = "",
    roles: tuple[str, ...] = (),
    certificates: tuple[str, ...] = (),
) -> str:
    """A user's part of the file; without ``instances``, everything is permitted in all of them.

    Args:
        secret: hashed cheaply; or give ``hashed``.
    """
    lines = [f"[users.{name}]"]
    if secret or hashed:
        lines.append(f"secret = '{hashed or CHEAP.hash(secret)}'")
    lines += [f"roles = {list(roles)}", f"certificates = {list(certificates)}"]
    for instance, patterns in ({"*": EVERYTHING} if instances is None else instances).items():
        lines.append(f"[users.{name}.instances.'{instance}']")
        lines += [f"{right} = '''{pattern}'''" for right, pattern in patterns.items()]
    return "\n".join((*lines, ""))


def write_users(path: Path, *tables: str) -> Path:
    """Replace the file by one with these tables, which only its owner may read."""
    new = path.with_suffix(".new")
    new.touch(0o600)
    new.write_text("\n".join(tables))
    new.rename(path)
    return path
