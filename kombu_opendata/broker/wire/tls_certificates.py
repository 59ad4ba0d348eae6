"""TLS of a broker: its certificate and key and its clients' authorities, which are read again when the files change.

New handshakes use new certificates; open connections stay open. A new context is tested first, by a handshake in memory
with a client that trusts the certificate. The test detects certificates that no client would accept, such as a
certificate for another purpose, and returns the expiry date.

If a handshake fails, asyncio and uvloop close the connection without sending the alert that OpenSSL has written: a
client whose certificate is refused would see the end of the connection, without a reason. :class:`ServerContext` adds
the alert to the error, and the code that accepted the socket sends it.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...errors import StartError
from ...file_system import read_private
from ..metrics.metric_catalogue import MetricsSnapshot

log = logging.getLogger(__name__)

#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME: the handshake in memory reads the dates, which are checked here
_NO_CHECK_TIME = 0x200000
#: maximum number of flights of a handshake
_FLIGHTS = 4
_DAY_SECONDS = 86_400.0
#: time before a certificate's expiry from which the log has a warning once a day
WARN_SECONDS = 14 * _DAY_SECONDS
_TEXTS = {"server": "the TLS certificate", "client_ca": "the certificate of an authority of clients"}


class _Handshake(ssl.SSLObject):
    """Server side of a connection; ``outgoing`` has the bytes to be sent to the client."""

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as exc:
            exc.alert = self.outgoing.read()  # type: ignore[attr-defined]
            raise


class ServerContext(ssl.SSLContext):
    """Context of a server: TLS 1.2 or newer, with Python's default ciphers.

    Attributes:
        ends_at: the earliest expiry of its certificates, in seconds since the epoch, by purpose.
    """

    sslobject_class = _Handshake
    ends_at: dict[str, float]

    def __new__(cls) -> ServerContext:
        context = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_TICKET  # a resumed session would not verify the client's certificate again
        context.num_tickets = 0
        context.ends_at = {}
        return context

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any) -> ssl.SSLObject:
        side = super().wrap_bio(incoming, outgoing, *args, **more)
        assert isinstance(side, _Handshake)
        side.outgoing = outgoing
        return side


def send_alert(sock: socket.socket, exc: OSError) -> None:
    """Send the alert of a failed handshake, if there is one."""
    alert = getattr(exc, "alert", b"")
    with suppress(OSError):
        if alert:
            sock.send(alert)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(1 << 16)  # unread data would make the kernel discard the alert


@dataclass(frozen=True)
class TlsFiles:
    """Files of TLS, all PEM.

    Attributes:
        certificate: the chain, and the key unless ``key`` is set.
        client_ca: authorities of the certificates that clients log in with, and their revocation lists.
        clients_need_certificates: if False, a client without a certificate may log in with a secret.
    """

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None
    clients_need_certificates: bool = True


def load(files: TlsFiles, now: float) -> ServerContext:
    """Load the SSL context of a server.

    Raises:
        StartError: a file is missing, not PEM, not valid now, or readable by all users; or key and certificate differ.
    """
    context = ServerContext()
    _load_certificate(context, files)
    certificate = _try(context, files.certificate)
    _check_dates(certificate, files.certificate, now)
    context.ends_at["server"] = _end(certificate)
    if files.client_ca is not None:
        authorities = _load_authorities(context, files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if files.clients_need_certificates else ssl.CERT_OPTIONAL
        context.ends_at["client_ca"] = min(map(_end, authorities))
    return context


def _load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    certificate, key = files.certificate, files.key
    if b"-----BEGIN CERTIFICATE-----" not in _read(certificate):
        raise StartError(f"{certificate} holds no certificate in PEM form (BEGIN CERTIFICATE)", path=str(certificate))
    key_data = read_private(key or certificate, "the private key", StartError)
    if b"PRIVATE KEY-----" not in key_data:
        what = "give --tls-key FILE" if key is None else "is it another file's name?"
        raise StartError(f"{key or certificate} holds no private key in PEM form: {what}", path=str(key or certificate))
    if b"ENCRYPTED" in key_data:
        text = f"the private key in {key or certificate} is encrypted: decrypt it with openssl pkey -in FILE -out FILE"
        raise StartError(text, path=str(key or certificate))
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            text = f"the private key in {key or certificate} does not belong to the certificate in {certificate}"
        else:
            text = f"the TLS certificate {certificate} can't be used: {exc.reason or exc}"
        raise StartError(text, path=str(certificate)) from exc


def _load_authorities(context: ssl.SSLContext, path: Path) -> list[dict[str, Any]]:
    """Trust the authorities of a file, and use its revocation lists if it has any; return the authorities."""
    data = _read(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as exc:
        text = f"{path} holds no certificates of authorities in PEM form: {exc.reason or exc}"
        raise StartError(text, path=str(path)) from exc
    if b"-----BEGIN X509 CRL-----" in data:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    authorities: Any = context.get_ca_certs()
    if not authorities:
        text = f"{path} holds no certificate of an authority: give --tls-client-ca the certificate that signs clients'"
        raise StartError(text, path=str(path))
    return list(authorities)


def _try(context: ssl.SSLContext, path: Path) -> dict[str, Any]:
    """Perform a handshake with a client that trusts the certificate; return the certificate.

    Raises:
        StartError: no client would accept the certificate.
    """
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.load_verify_locations(path)
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(_FLIGHTS):
            for side in (client, server):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLError as exc:
        why = getattr(exc, "verify_message", None) or exc.reason or exc
        raise StartError(f"no client would accept the TLS certificate {path}: {why}", path=str(path)) from exc
    return dict(client.getpeercert() or {})


def _check_dates(certificate: dict[str, Any], path: Path, now: float) -> None:
    begin, end = ssl.cert_time_to_seconds(certificate["notBefore"]), _end(certificate)
    if now >= end:
        raise StartError(f"the TLS certificate {path} expired on {_day(end)}: renew it", path=str(path))
    if now < begin:
        text = f"the TLS certificate {path} is not valid before {_day(begin)}: wait, or check this machine's clock"
        raise StartError(text, path=str(path))


def _end(certificate: dict[str, Any]) -> float:
    return ssl.cert_time_to_seconds(certificate["notAfter"])


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise StartError(f"the TLS file {path} can't be read: {exc.strerror}", path=str(path)) from exc


def names_of(certificate: dict[str, Any] | None) -> tuple[str, ...] | None:
    """Return the names in a client's certificate, as in getpeercert(): alternative names first, then common names.

    Alternative names are of the types DNS, URI and email. None if the client has no certificate.
    """
    if not certificate:
        return None
    alternative = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI", "email")]
    subject: Iterable[Any] = certificate.get("subject", ())
    common = [value for pairs in subject for kind, value in pairs if kind == "commonName"]
    return tuple(dict.fromkeys(alternative + common))


class ServerTls:
    """TLS for new connections: the next handshake uses ``context``.

    Raises:
        StartError: a file is not valid.
    """

    def __init__(self, files: TlsFiles, now: Callable[[], float] = time.time) -> None:
        self.files = files
        self._now = now
        self._paths = [path for path in (files.certificate, files.key, files.client_ca) if path is not None]
        self._stamp = self._read_stamp()
        self.context = load(files, now())
        self._warned_at = 0.0

    def reload(self) -> None:
        """Read the files again; raise StartError and leave the context unchanged if a file is not valid."""
        self._stamp = self._read_stamp()
        self.context = load(self.files, self._now())
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
        """Read changed files again, and warn of certificates that expire soon; errors are only logged."""
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
        for which, end in self.context.ends_at.items():
            if end - now < WARN_SECONDS:
                days = (end - now) / _DAY_SECONDS
                when = f"expires in {days:.1f} days" if days > 0 else "has expired"
                path = self.files.client_ca if which == "client_ca" else self.files.certificate
                log.warning("%s %s %s: replace the file; the broker reads it again", _TEXTS[which], path, when)

    def measure(self, snapshot: MetricsSnapshot) -> None:
        """Add the certificates' expiry to a scrape of the metrics."""
        for which, end in self.context.ends_at.items():
            snapshot.set("tls_certificate_expiry_timestamp_seconds", end, which)
