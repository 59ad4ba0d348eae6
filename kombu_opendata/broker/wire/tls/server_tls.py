"""The TLS of a broker, which follows its files: new handshakes use new certificates, open connections stay."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable

from ....errors import StartError
from ...metrics.snapshot import MetricsSnapshot
from .certificates import Loaded, TlsFiles, load

log = logging.getLogger(__name__)

_DAY_SECONDS = 86_400.0
#: how long before a certificate's expiry the log warns, once a day
WARN_SECONDS = 14 * _DAY_SECONDS
_TEXTS = {"server": "the TLS certificate", "client_ca": "the certificate of an authority of clients"}


class ServerTls:
    """The context for new connections.

    Raises:
        StartError: the files can't be used.
    """

    def __init__(self, files: TlsFiles, now: Callable[[], float] = time.time) -> None:
        self.files = files
        self._now = now
        self._paths = [path for path in (files.certificate, files.key, files.client_ca) if path is not None]
        self._stamp = self._read_stamp()
        self._loaded: Loaded = load(files, now())
        self._warned_at = 0.0

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next handshake."""
        return self._loaded.context

    def reload(self) -> None:
        """Read the files again.

        Raises:
            StartError: the files can't be used; the old context stays.
        """
        self._stamp = self._read_stamp()
        self._loaded = load(self.files, self._now())
        self._warned_at = 0.0
        log.info("the TLS certificates were read again: new connections use them")

    def _read_stamp(self) -> list[tuple[int, ...]]:
        stamps: list[tuple[int, ...]] = []
        for path in self._paths:
            try:
                stat = path.stat()
                stamps.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
            except OSError as exc:
                stamps.append((exc.errno or 0,))
        return stamps

    def tick(self) -> None:
        """Read the files again if one changed, and warn of certificates that expire soon. Never raises."""
        if self._read_stamp() != self._stamp:
            try:
                self.reload()
            except StartError as exc:
                log.error("TLS stays as it was: %s", exc.text, extra={"code": exc.code})
        self._warn()

    def _warn(self) -> None:
        now = self._now()
        if now - self._warned_at < _DAY_SECONDS:
            return
        self._warned_at = now
        for which, end in self._loaded.ends_at.items():
            if end - now < WARN_SECONDS:
                days = (end - now) / _DAY_SECONDS
                when = f"expires in {days:.1f} days" if days > 0 else "has expired"
                path = self.files.client_ca if which == "client_ca" else self.files.certificate
                log.warning("%s %s %s: replace the file; the broker reads it again", _TEXTS[which], path, when)

    def measure(self, snapshot: MetricsSnapshot) -> None:
        """Add the certificates' expiry to a scrape of the metrics."""
        for which, end in self._loaded.ends_at.items():
            snapshot.set("tls_certificate_expiry_timestamp_seconds", end, which)
