"""The TLS context of a connection, from the options that a user has given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import RequestError

if TYPE_CHECKING:
    import ssl

TLS_OPTIONS = frozenset(
    {
        "ca_certs", "certfile", "keyfile", "keyfile_password", "cert_reqs", "check_hostname", "ciphers",
        "server_hostname", "context",
    }
)  # fmt: skip


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """A context that verifies the broker's certificate, unless ``cert_reqs`` says otherwise.

    The options have the names of Kombu's AMQP transport, also with the prefix ``ssl_``.

    Raises:
        RequestError: an option is unknown or wrong.
    """
    import ssl  # few clients need it

    given = {key.removeprefix("ssl_"): value for key, value in options.items()}
    unknown = sorted(set(given) - TLS_OPTIONS)
    if unknown:
        raise RequestError(
            f"unknown TLS option {unknown[0]!r}; known are {', '.join(sorted(TLS_OPTIONS))}", option=unknown[0]
        )
    if given.get("context") is not None:
        ready: ssl.SSLContext = given["context"]
        return ready
    try:
        context = ssl.create_default_context(cafile=given.get("ca_certs"))
        if given.get("certfile"):
            context.load_cert_chain(given["certfile"], given.get("keyfile"), given.get("keyfile_password"))
        if given.get("ciphers"):
            context.set_ciphers(given["ciphers"])
    except OSError as exc:
        files = ", ".join(str(given[name]) for name in ("ca_certs", "certfile", "keyfile") if given.get(name))
        raise RequestError(f"TLS can't be set up with {files or 'these ciphers'}: {exc}") from exc
    verify = _verify_mode(given.get("cert_reqs"))
    context.check_hostname = bool(given.get("check_hostname", True)) and verify == ssl.CERT_REQUIRED
    context.verify_mode = verify
    return context


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
