"""The instances that a client may name: those that are open or in the store, and with an option any.

So a misspelt name is an error, not a new empty database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from difflib import get_close_matches

from ...errors import InstanceNotFound, RequestError
from ...storage.slatedb.databases import database_exists, databases

#: a name with one of these endings would be another instance's folder of journals or staged batches
_NAME = re.compile(r"(?!.*\.(?:journal|staged)$)[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_SHOWN = 10


def check_name(name: str) -> None:
    """Check that an instance can have this name. Raises RequestError if not."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"instance name {name!r}: use up to 64 letters, digits, '_', '-' and '.', without '.journal' or "
            "'.staged' at the end",
            instance=name,
        )


@dataclass(frozen=True)
class InstanceNames:
    """The instances of a store.

    Attributes:
        store: the object store's URL.
        create: a client may name any instance, which is then created.
    """

    store: str
    create: bool

    async def check(self, name: str, opened: Collection[str], may_enter: Callable[[str], bool]) -> None:
        """Check that a client may name an instance.

        Args:
            may_enter: selects the other instances that the error may list for the client.

        Raises:
            RequestError: the name is not valid.
            InstanceNotFound: there is no such instance; the text explains how to create it.
            StoreError: the store can't be read.
        """
        check_name(name)
        if self.create or name in opened or await database_exists(self.store, name):
            return
        known = sorted(filter(may_enter, self.listing(opened)))
        meant = get_close_matches(name, known, n=1)
        hint = f" Did you mean {meant[0]!r}?" if meant else ""
        names_text = ", ".join(known[:_SHOWN]) + (" …" if len(known) > _SHOWN else "")
        raise InstanceNotFound(
            f"this broker has no instance {name!r}; it has {names_text or 'none that you may use'}.{hint} "
            f"To create it: 'opendata-queue instance create {name}', or start the broker with --instance {name} or "
            "--create-instances",
            instance=name,
        )

    def listing(self, opened: Collection[str]) -> dict[str, bool]:
        """Return all known instances, and whether each is open."""
        return {name: name in opened for name in {*databases(self.store), *opened}}
