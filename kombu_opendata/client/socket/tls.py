"""TLS context of a connection, from the options of the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import AccessRefused, RequestError

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
    """Return the refusal of this client's certificate that a TLS error stands for; None for another error.

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
