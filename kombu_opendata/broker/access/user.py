"""A user: how it logs in, its rights in each instance, its limits."""

from __future__ import annotations

from ...errors import AccessRefused
from .file_format import LimitsTable, Patterns, UserTable
from .rights import Rights

#: the entry for instances without one of their own
ANY_INSTANCE = "*"
_MAX_REMEMBERED = 1000


class User:
    """A user of the users file.

    Attributes:
        name: what the client logs in as.
        table: the user's part of the file.
        limits: what all connections of the user may use together.
    """

    __slots__ = ("_rights", "limits", "name", "table")

    def __init__(self, name: str, table: UserTable) -> None:
        """Compile the patterns.

        Raises:
            PatternError: one of them is not valid.
        """
        self.name = name
        self.table = table
        self.limits: LimitsTable = table.limits
        self._rights: dict[str, Rights] = {}
        for instance, patterns in table.instances.items():
            self._rights[instance] = Rights(name, instance, patterns, table.roles)

    def may_enter(self, instance: str) -> bool:
        """Whether the user has an entry for an instance."""
        tables = self.table.instances
        return instance in tables or ANY_INSTANCE in tables or "admin" in self.table.roles

    def rights(self, instance: str) -> Rights:
        """What the user may do in an instance.

        Raises:
            AccessRefused: nothing.
        """
        found = self._rights.get(instance)
        if found is None:
            if not self.may_enter(instance):
                shown = instance[:100]
                raise AccessRefused(
                    f"user {self.name!r} may not use instance {shown!r}: ask whoever keeps the users file for an entry "
                    f"(opendata-queue user permit {self.name} --instance {shown})",
                    right="enter",
                    kind="instance",
                    name=shown,
                    user=self.name,
                    instance=shown,
                )
            found = Rights(self.name, instance, self.table.instances.get(ANY_INSTANCE, Patterns()), self.table.roles)
            if len(self._rights) >= _MAX_REMEMBERED:  # names that clients gave
                self._rights = {name: self._rights[name] for name in self.table.instances}
            self._rights[instance] = found
        return found


#: everybody, if the broker has no users file
ANONYMOUS = User("", UserTable(roles=frozenset({"admin"})))
