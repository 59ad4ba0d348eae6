"""Tables of the users file, as decoded (docs/permissions.md)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Role = Literal["monitor", "operator", "admin"]
Count = Annotated[int, Meta(ge=1)]


class FileTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the tables."""


class Patterns(FileTable, frozen=True):
    """Names that a user may configure, write and read in an instance; an empty pattern permits nothing."""

    configure: str = ""
    write: str = ""
    read: str = ""


class LimitsTable(FileTable, frozen=True, rename="kebab"):
    """Limits of a user or of an instance; None means no limit."""

    connections: Count | None = None
    channels: Count | None = None
    consumers: Count | None = None
    queues: Count | None = None
    bindings: Count | None = None
    message_bytes: Count | None = None
    publishes_per_second: Count | None = None


class UserTable(FileTable, frozen=True):
    """``[users.NAME]``."""

    secret: str = ""  # an Argon2 hash; if empty, the user logs in by certificate only
    #: names of client certificates (subject CN, SAN DNS, URI or email) that log in as this user
    certificates: tuple[str, ...] = ()
    roles: frozenset[Role] = frozenset()
    limits: LimitsTable = LimitsTable()
    instances: dict[str, Patterns] = {}  # patterns by instance; ``*`` means any instance without its own patterns

    def __repr__(self) -> str:
        """Return the table without the hash."""
        return f"UserTable(roles={sorted(self.roles)}, instances={self.instances})"


class InstanceTable(FileTable, frozen=True):
    """``[instances.NAME]``."""

    limits: LimitsTable = LimitsTable()
