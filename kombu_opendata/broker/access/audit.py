"""Audit log: a line for each refusal for a missing right, and for each change by a user.

Lines go to the logger :data:`NAME`. A client may repeat a call without limit, so repeated refusals are counted for a
minute and then logged as a number. Lines never contain secrets. Of a message, only its queue and its id are logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ...errors import AccessRefused

NAME = "kombu_opendata.audit"
PERIOD_SECONDS = 60.0
#: maximum number of separate lines in a period, for different refusals and for the changes by one user
MAX_REFUSALS = 200
MAX_CHANGES = 500

log = logging.getLogger(NAME)


class Audit:
    """Audit lines of one instance, or of the broker as a whole."""

    def __init__(self, time: Callable[[], float], instance: str = "") -> None:
        self._time = time
        self._fields = {"instance": instance} if instance else {}
        self._until = 0.0  # end of the period
        #: number of repetitions, and fields of the log record, by user, right, kind and name
        self._refusals: dict[tuple[str, ...], tuple[int, dict[str, Any]]] = {}
        self._changes: dict[str, int] = {}  # number by user

    def refused(self, exc: AccessRefused, client: str) -> None:
        """Record a call that was refused for a missing right."""
        right, kind, name, user, instance = (
            str(exc.values.get(field, "")) for field in ("right", "kind", "name", "user", "instance")
        )
        key = (user, right, kind, name)
        if key not in self._refusals and len(self._refusals) >= MAX_REFUSALS:
            key = (user, "other rights", "", "")
        count, fields = self._refusals.get(key, (-1, {}))
        if count < 0:
            self._begin_period()
            fields = {"user": user, "right": right, "object": f"{kind} {name}", "instance": instance}
            text = "refused: %s in instance %r to user %r (client %s)"
            log.warning(text, _lacking(right, kind, name), instance, user, client, extra={**fields, "session": client})
        self._refusals[key] = (count + 1, fields)

    def changed(self, user: str, client: str, text: str, *args: object, **fields: Any) -> None:
        """Record a change by a user; ``text`` names the change, as in "deleted queue %r"."""
        self._begin_period()
        count = self._changes[user] = self._changes.get(user, 0) + 1
        if count <= MAX_CHANGES:
            who = f"user {user!r}" if user else "anonymous"
            extra = {**self._fields, "user": user, "session": client, **fields}
            log.info("%s (client %s) " + text, who, client, *args, extra=extra)

    def tick(self) -> None:
        """Log the counts of a period that is over. Called regularly."""
        if self._until and self._time() >= self._until:
            self.close()

    def close(self) -> None:
        """Log the counts so far, at the end of a period or at shutdown."""
        self._until = 0.0
        for (user, right, kind, name), (count, fields) in self._refusals.items():
            if count:
                text = "refused %d times more in %g s: %s to user %r"
                log.warning(text, count, PERIOD_SECONDS, _lacking(right, kind, name), user, extra=fields)
        for user, count in self._changes.items():
            if count > MAX_CHANGES:
                text = "user %r made %d changes more in %g s"
                log.warning(text, user, count - MAX_CHANGES, PERIOD_SECONDS, extra={**self._fields, "user": user})
        self._refusals.clear()
        self._changes.clear()

    def _begin_period(self) -> None:
        if not self._until:
            self._until = self._time() + PERIOD_SECONDS


def _lacking(right: str, kind: str, name: str) -> str:
    """Name the missing right, as in "write on exchange 'x'" or "the role 'monitor'"."""
    if not kind:
        return right
    return f"the role {name!r}" if kind == "role" else f"{right} on {kind} {name!r}"
