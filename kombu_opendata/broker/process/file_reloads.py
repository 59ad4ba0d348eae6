"""Reload of the users file and the certificates: after a change, after a SIGHUP, and at a client's request."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...errors import InvalidUsersFile, OpenDataError, StartError
from ...protocol.messages import Reloaded
from ..access import audit
from ..wire.logins import Logins
from ..wire.open_connections import Connections
from ..wire.tls_certificates import ServerTls
from .logs import code_of

log = logging.getLogger(__name__)
_audit_log = logging.getLogger(audit.NAME)


class Reloading:
    """Application of changed files to open and new connections. An invalid file is logged and has no effect."""

    def __init__(self, connections: Connections, logins: Logins | None, tls: ServerTls | None) -> None:
        self._connections, self._logins, self._tls = connections, logins, tls
        #: called at the beginning of a requested reload with None, and at its end with the error or an empty text
        self.watchers: list[Callable[[str | None], None]] = []

    def reload(self, by: str) -> Reloaded:
        """Read all files again, changed or not.

        Raise StartError if a file is not valid. It has no effect; the other files are applied.
        """
        for watcher in self.watchers:
            watcher(None)
        fault = ""
        try:
            return self._reload(by)
        except StartError as exc:
            fault = exc.text
            raise
        finally:
            for watcher in self.watchers:
                watcher(fault)

    def _reload(self, by: str) -> Reloaded:
        failures: list[StartError] = []
        done = Reloaded(0, [], [], [], certificates=False)
        try:
            done = self._reload_users(by, always=True) or done
        except InvalidUsersFile as exc:
            failures.append(exc)
        if self._tls is not None:
            done.certificates = True
            try:
                self._tls.reload()
            except StartError as exc:
                log.error("TLS stays as it was: %s", exc.text, extra=code_of(exc))
                failures.append(exc)
        if failures:
            raise failures[0]
        return done

    def on_signal(self) -> None:
        """Reload after a SIGHUP; errors are only logged."""
        try:
            self.reload("SIGHUP")
        except OpenDataError:
            return

    def tick(self) -> None:
        """Read the users file again if it changed; errors are only logged."""
        try:
            self._reload_users("its change", always=False)
        except InvalidUsersFile:
            return

    def _reload_users(self, by: str, *, always: bool) -> Reloaded | None:
        if self._logins is None:
            return None
        try:
            changes = self._logins.users.reload(always=always)
        except InvalidUsersFile as exc:
            log.error("the users stay as they were: %s", exc.text, extra=code_of(exc))
            raise
        if changes is not None:
            named = {"added": changes.added, "removed": changes.removed, "changed": changes.changed}
            parts = [f"{what} {', '.join(map(repr, users))}" for what, users in named.items() if users]
            _audit_log.info("the users file was read again by %s: %s", by, "; ".join(parts) or "no user changed")
            self._connections.quotas.update(self._logins.users.users, self._logins.users.instances)
            self._connections.check_logins(self._logins)
        return changes
