"""A user's login, rights in each instance, and limits."""

from __future__ import annotations

from ...errors import AccessRefused
from .file_format import LimitsTable, Patterns, UserTable
from .rights import Rights

#: the entry for instances without their own entry
ANY_INSTANCE = "*"
_MAX_REMEMBERED = 1000


class User:
    """A user of the users file.

    Attributes:
        name: the login name.
        table: the user's table in the file.
        limits: the limits of all connections of the user together.
    """

    __slots__ = ("_rights", "limits", "name", "table")

    def __init__(self, name: str, table: UserTable) -> None:
        """Compile the patterns.

        Raises:
            PatternError: a pattern is not valid.
        """
        self.name = name
        self.table = table
        self.limits: LimitsTable = table.limits
        self._rights: dict[str, Rights] = {}
        for instance, patterns in table.instances.items():
            self._rights[instance] = Rights(name, instance, patterns, table.roles)

    def may_enter(self, instance: str) -> bool:
        """Return whether the user has an entry for an instance."""
        tables = self.table.instances
        return instance in tables or ANY_INSTANCE in tables or "admin" in self.table.roles

    def rights(self, instance: str) -> Rights:
        """Return the user's rights in an instance.

        Raises:
            AccessRefused: the user may not use the instance.
        """
        rights = self._rights.get(instance)
        if rights is None:
            if not self.may_enter(instance):
                instance_name = instance[:100]
                raise AccessRefused(
                    f"user {self.name!r} may not use instance {instance_name!r}: ask the administrator of the users "
                    f"file for an entry (opendata-queue user permit {self.name} --instance {instance_name})",
                    right="enter",
                    kind="instance",
                    name=instance_name,
                    user=self.name,
                    instance=instance_name,
                )
            rights = Rights(self.name, instance, self.table.instances.get(ANY_INSTANCE, Patterns()), self.table.roles)
            if len(self._rights) >= _MAX_REMEMBERED:  # names from clients
                self._rights = {name: self._rights[name] for name in self.table.instances}
            self._rights[instance] = rights
        return rights


#: the user of all clients of a broker without a users file
ANONYMOUS = User("", UserTable(roles=frozenset({"admin"})))
