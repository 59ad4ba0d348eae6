"""Connected sockets: over TCP or TLS, to a Unix socket, or to a broker in this process; and the options of TLS."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import AccessRefused, ConnectionLost, InvalidURL, RequestError, SocketPathTooLong
from ...local_users import is_alone_at, is_trusted, peer_uid, user_name
from ...private_folder import denied
from ...protocol.tcp import set_tcp_options
from ...url import Address
from ..connection_options import Options

if TYPE_CHECKING:
    import ssl

TLS_OPTIONS = frozenset(
    {
        "ca_certs", "certfile", "keyfile", "keyfile_password", "cert_reqs", "check_hostname", "ciphers",
        "server_hostname", "context",
    }
)  # fmt: skip
#: OpenSSL's reasons if a broker refuses the client's certificate; the first two mean a missing certificate
_NO_CERTIFICATE = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"})
_CERTIFICATE_REFUSED = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR", "TLSV1_ALERT_UNKNOWN_CA",
    }
)  # fmt: skip


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return a context that verifies the broker's certificate, unless ``cert_reqs`` disables it.

    The options have the names of Kombu's AMQP transport, optionally with the prefix ``ssl_``.

    Raises:
        RequestError: an option is unknown or wrong.
    """
    import ssl  # few clients need it

    values = {key.removeprefix("ssl_"): value for key, value in options.items()}
    unknown = sorted(set(values) - TLS_OPTIONS)
    if unknown:
        raise RequestError(
            f"unknown TLS option {unknown[0]!r}; known are {', '.join(sorted(TLS_OPTIONS))}", option=unknown[0]
        )
    if values.get("context") is not None:
        ready: ssl.SSLContext = values["context"]
        return ready
    try:
        context = ssl.create_default_context(cafile=values.get("ca_certs"))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if values.get("certfile"):
            context.load_cert_chain(values["certfile"], values.get("keyfile"), values.get("keyfile_password"))
        if values.get("ciphers"):
            context.set_ciphers(values["ciphers"])
    except OSError as exc:
        files = ", ".join(str(values[name]) for name in ("ca_certs", "certfile", "keyfile") if values.get(name))
        raise RequestError(f"TLS can't be set up with {files or 'these ciphers'}: {exc}") from exc
    verify = _verify_mode(values.get("cert_reqs"))
    context.check_hostname = _check_hostname(values.get("check_hostname", True)) and verify == ssl.CERT_REQUIRED
    context.verify_mode = verify
    return context


def _check_hostname(value: Any) -> bool:
    if not isinstance(value, str):
        return bool(value)
    from ...configuration.kinds import Flag  # an ini file has texts only

    try:
        return Flag().read(value)
    except ValueError as exc:
        raise RequestError(f"check_hostname: {exc}", option="check_hostname") from exc


def _verify_mode(value: int | str | None) -> ssl.VerifyMode:
    import ssl

    if value is None:
        return ssl.CERT_REQUIRED
    names = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}
    if isinstance(value, str):
        key = value.lower().removeprefix("cert_")
        if key not in names:
            raise RequestError(f"cert_reqs {value!r} is not one of required, optional and none")
        return names[key]
    return ssl.VerifyMode(value)


def certificate_refusal(exc: OSError) -> AccessRefused | None:
    """Return the broker's refusal of this client's certificate if the TLS error reports one, otherwise None.

    With TLS 1.3 the error arrives after the handshake, at the first read.
    """
    reason = str(getattr(exc, "reason", None))
    if reason in _NO_CERTIFICATE:
        text = "the broker wants a certificate of this client: give certfile and keyfile (--tls-cert and --tls-key)"
        return AccessRefused(text)
    if reason in _CERTIFICATE_REFUSED:
        why = reason.partition("ALERT_")[2].lower().replace("_", " ")
        return AccessRefused(f"the broker refused this client's certificate ({why}); see the broker's log")
    return None


#: OpenSSL's reasons for a reply that is not TLS; they differ by version
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"})
#: OpenSSL's codes for a certificate whose issuer is unknown, self-signed or signed by another certificate
_UNKNOWN_AUTHORITY = frozenset({18, 19, 20, 21})
#: sun_path holds 108 bytes on Linux, the last one zero
MAX_SOCKET_PATH_BYTES = 107 if sys.platform.startswith("linux") else 103
_TIMEVAL = struct.Struct("ll")


def secured(sock: socket.socket, broker: Address, options: Options, timeout: float) -> socket.socket:
    """Return the connected TCP socket, with TLS if the address or the options require it.

    Raises:
        ConnectionLost: the handshake failed, or the broker's certificate is not trusted.
        InvalidURL: the broker does not speak TLS.
        RequestError: a TLS option is unknown or wrong.
        AccessRefused: the broker refused the client's certificate.
    """
    tls: Mapping[str, Any] = options.tls if isinstance(options.tls, Mapping) else {}
    context = tls_context(tls) if broker.tls or options.tls else None
    try:
        sock.settimeout(timeout)
        set_tcp_options(sock)
        if context is None:
            return sock
        return context.wrap_socket(sock, server_hostname=tls.get("server_hostname") or broker.host)
    except OSError as exc:
        if (refusal := certificate_refusal(exc)) is not None:
            raise refusal from exc
        if getattr(exc, "reason", None) in _NO_TLS:
            raise InvalidURL(
                f"the broker at {broker} does not speak TLS: start it with --tls-cert and --tls-key; or, to "
                "connect without TLS, write opendata:// in place of opendatas:// and don't set broker_use_ssl",
                address=str(broker),
            ) from exc
        raise unreachable(broker, exc) from exc


def connect_socket_url(address: Address, options: Options) -> socket.socket:
    """Return a socket that is connected to a broker on this machine, which may run as another user.

    Raises:
        SocketPathTooLong: no socket can have this path.
        AccessRefused: permission to connect is denied, or another user may have put the socket there.
        ConnectionLost: no broker listens there, or any other failure.
    """
    path = address.socket_path
    check_socket_path(path)
    try:
        return connect_unix(
            path, options.connect_timeout, trusted=lambda uid: is_trusted(uid) or is_alone_at(uid, path)
        )
    except (FileNotFoundError, ConnectionRefusedError) as exc:
        text = f"no broker listens on {path}: start it with --listen unix:{path}, or check the path"
        raise ConnectionLost(text, address=str(address)) from exc


def connect_unix(path: str, timeout: float, *, trusted: Callable[[int], bool] = is_trusted) -> socket.socket:
    """Return a connected Unix socket.

    Args:
        trusted: returns True if the listener may run as the user with this id.

    Raises:
        FileNotFoundError, ConnectionRefusedError: no process listens there.
        AccessRefused: permission to connect is denied, or the listener is not trusted.
        ConnectionLost: any other failure.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A non-blocking connect would fail immediately when the listener's backlog is full; a blocking one waits for
        # space.
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(max(1, int(timeout)), 0))
        sock.connect(path)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, 0))
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        raise
    except PermissionError as exc:
        sock.close()
        text = f"{denied(path)}; a broker lets a group in with --socket-group, and all its users with --users"
        raise AccessRefused(text, path=path) from exc
    except OSError as exc:
        sock.close()
        raise ConnectionLost(f"cannot connect to {path}: {exc}", path=path) from exc
    _check_listener(sock, path, trusted)
    return sock


def _check_listener(sock: socket.socket, path: str, trusted: Callable[[int], bool]) -> None:
    try:
        uid = peer_uid(sock)
    except OSError as exc:  # the listener has exited
        sock.close()
        raise ConnectionLost(f"cannot connect to {path}: {exc}", path=path) from exc
    if not trusted(uid):
        sock.close()
        raise AccessRefused(
            f"{user_name(uid)} listens on {path}, not you or root: use a folder that only you may write to (for "
            "--listen unix:…, only the broker's user and root), or run this as that user",
            path=path,
        )


def check_socket_path(path: str) -> None:
    """Raise SocketPathTooLong if no Unix socket can have this path."""
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH_BYTES:
        raise SocketPathTooLong(
            f"the socket path {path} has {size} bytes and the limit is {MAX_SOCKET_PATH_BYTES}: use a shorter folder, "
            "or run a broker by hand with --listen tcp:host:port and connect to opendata://host:port",
            path=path,
            size=size,
            limit=MAX_SOCKET_PATH_BYTES,
        )


def connect_memory(name: str) -> socket.socket:
    """Return one end of a socket pair; a broker in this process serves the other end."""
    from ...broker.memory import connect

    sock: socket.socket = connect(name)
    return sock


def unreachable(address: Address, exc: OSError) -> ConnectionLost:
    """Return the error with the reason why no broker was reached there."""
    hint = ""
    if isinstance(exc, socket.gaierror):
        hint = f" (for a folder write three slashes: opendata:///{address.host}/…)"
    elif getattr(exc, "verify_code", 0) in _UNKNOWN_AUTHORITY:
        hint = " (name the certificate of the authority: ca_certs in broker_use_ssl, or --tls-ca of a command)"
    return ConnectionLost(f"cannot connect to the broker at {address}: {exc}{hint}", address=str(address))
