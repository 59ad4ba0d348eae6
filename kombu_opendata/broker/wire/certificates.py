"""Loads the broker's TLS certificate and key, with errors that name the wrong file."""

from __future__ import annotations

import ssl
from pathlib import Path

from ...errors import StartError


def server_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The SSL context of a server; None without a certificate.

    Args:
        certificate: PEM, the chain; it may hold the key, too.
        key: PEM.

    Raises:
        StartError: a file is missing, is not PEM, or they don't belong together.
    """
    if certificate is None:
        if key is not None:
            raise StartError("--tls-key without --tls-cert: give the certificate, too")
        return None
    if b"-----BEGIN CERTIFICATE-----" not in _read(certificate):
        raise StartError(f"{certificate} holds no certificate in PEM form (BEGIN CERTIFICATE)", path=str(certificate))
    held = _read(key or certificate)
    if b"PRIVATE KEY-----" not in held:
        what = "give --tls-key FILE" if key is None else "is it another file's name?"
        raise StartError(f"{key or certificate} holds no private key in PEM form: {what}", path=str(key or certificate))
    if b"ENCRYPTED" in held:
        text = f"the private key in {key or certificate} is encrypted: decrypt it with openssl pkey -in FILE -out FILE"
        raise StartError(text, path=str(key or certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            text = f"the private key in {key or certificate} does not belong to the certificate in {certificate}"
        else:
            text = f"the TLS certificate {certificate} can't be used: {exc.reason or exc}"
        raise StartError(text, path=str(certificate)) from exc
    return context


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise StartError(f"the TLS file {path} can't be read: {exc.strerror}", path=str(path)) from exc
