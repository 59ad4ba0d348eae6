"""Broker URLs.

======================================================  ==========================================================
URL                                                     what it names
======================================================  ==========================================================
``opendata:///abs/folder``                              the embedded broker of a folder, started when needed
``opendata://[user:secret@]host[:port][/instance]``     a broker that somebody runs, over TCP
``opendatas://[user:secret@]host[:port][/instance]``    the same over TLS
``opendata+memory://name``                              a broker inside this process, for unit tests
======================================================  ==========================================================

User, secret, host, folder and instance are percent-decoded.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

from .errors import InvalidURL

DEFAULT_PORT = 5677
DEFAULT_INSTANCE = "default"
SOCKET_NAME = "broker.sock"
LOCK_NAME = "broker.lock"
LOG_NAME = "broker.log"

_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_STORE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
#: of object stores, which are given to the broker
STORE_SCHEMES = frozenset({"s3", "s3a", "az", "abfs", "abfss", "adl", "azure", "gs", "gcs", "http", "https"})

Kind = Literal["embedded", "tcp", "memory"]


@dataclass(frozen=True)
class Address:
    """Where a broker is.

    Attributes:
        kind: how to reach it.
        folder: absolute store folder (embedded).
        host, port, user, secret, tls: (tcp).
        instance: the database inside the broker's store, AMQP's virtual host.
        name: of the broker in this process (memory).
    """

    kind: Kind
    folder: str = ""
    host: str = ""
    port: int = DEFAULT_PORT
    instance: str = DEFAULT_INSTANCE
    user: str = ""
    secret: str = field(default="", repr=False)
    tls: bool = False
    name: str = ""

    @property
    def socket_path(self) -> str:
        """The Unix socket of an embedded broker."""
        return f"{self.folder}/{SOCKET_NAME}"

    @property
    def log_path(self) -> str:
        """The log of an embedded broker."""
        return f"{self.folder}/{LOG_NAME}"

    def as_uri(self, include_secret: bool = False, mask: str = "**") -> str:
        """The URL of this address, with the secret masked unless asked for."""
        if self.kind == "embedded":
            return f"opendata://{quote(self.folder)}"
        if self.kind == "memory":
            return f"opendata+memory://{quote(self.name, safe='')}"
        login = ""
        if self.user or self.secret:
            secret = quote(self.secret, safe="") if include_secret else mask
            login = quote(self.user, safe="") + (f":{secret}" if self.secret else "") + "@"
        host = f"[{self.host}]" if ":" in self.host else quote(self.host, safe="")
        return f"opendata{'s' if self.tls else ''}://{login}{host}:{self.port}/{self.instance}"

    def __str__(self) -> str:
        return self.as_uri()


def parse(url: str) -> Address:
    """The address that a broker URL names.

    Raises:
        InvalidURL: the text says what to write instead.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise _invalid(url, "it is no URL; write opendata:///absolute/folder or opendata://host:port")
    if scheme in ("opendata+memory", "memory"):
        return memory(unquote(rest.strip("/")))
    if scheme.removeprefix("opendata+") in STORE_SCHEMES:
        raise _remote_store(url, url.removeprefix("opendata+"))
    if scheme not in ("opendata", "opendatas"):
        raise _invalid(url, f"{scheme!r} is none of opendata, opendatas, opendata+memory")
    if _STORE_URL.match(rest):
        raise _remote_store(url, rest)
    if rest.startswith("/"):
        if scheme == "opendatas":
            raise _invalid(url, "a folder is reached without TLS; write opendata:///absolute/folder")
        if "?" in rest or "#" in rest:
            raise _invalid(url, "a folder takes no query; give options as transport options, or write %3F or %23")
        return embedded(unquote(rest))
    if rest.startswith((".", "~")):
        raise _invalid(url, "the folder must be absolute, and a host does not begin so; write opendata:///folder")
    return _parse_host(url, scheme, rest)


def _parse_host(url: str, scheme: str, rest: str) -> Address:
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise _invalid(url, str(exc)) from exc
    if not host:
        raise _invalid(url, "it names neither a folder nor a host; write opendata:///absolute/folder")
    if parts.query or parts.fragment:
        raise _invalid(url, "it takes no query; give options as transport options")
    return tcp(
        unquote(host),
        port,
        unquote(parts.path),
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        tls=scheme == "opendatas",
    )


def embedded(folder: str) -> Address:
    """The embedded broker of an absolute folder."""
    url = f"opendata://{folder}"
    if not folder.startswith("/"):
        raise _invalid(url, "the folder must be absolute")
    if any(ord(c) < 32 for c in folder):
        raise _invalid(url, "the folder's name has control characters")
    clean = "/" + posixpath.normpath(folder).lstrip("/")
    if clean == "/":
        raise _invalid(url, "it names no folder")
    return Address("embedded", folder=clean)


def tcp(
    host: str, port: int | None, instance: str = "", user: str = "", secret: str = "", *, tls: bool = False
) -> Address:
    """A broker on a host; an empty instance (or AMQP's ``/``) is the default one."""
    instance = instance.strip("/") or DEFAULT_INSTANCE
    if not _INSTANCE.fullmatch(instance):
        raise _invalid(
            f"opendata://{host}/{instance}",
            "the instance is one name of letters, digits, '.', '_' and '-' "
            "(for a folder write three slashes: opendata:///absolute/folder)",
        )
    return Address("tcp", host=host, port=port or DEFAULT_PORT, instance=instance, user=user, secret=secret, tls=tls)


def memory(name: str) -> Address:
    """A broker inside this process."""
    return Address("memory", name=name or DEFAULT_INSTANCE)


def masked(url: str, mask: str = "**") -> str:
    """Any URL, also a wrong one, with what looks like a secret masked."""
    return re.sub(r"(//[^/@:]*):[^/@]*@", lambda found: f"{found[1]}:{mask}@", url)


def _invalid(url: str, why: str) -> InvalidURL:
    shown = masked(url)
    return InvalidURL(f"broker URL {shown!r} can't be used: {why}", url=shown)


def _remote_store(url: str, store: str) -> InvalidURL:
    scheme, _, path = store.partition(":")
    if scheme == "file":
        return _invalid(url, f"a client names the folder itself; write opendata:///{path.lstrip('/')}")
    return _invalid(
        url,
        "a store is given to the broker, not to a client, because a store has one writer: run "
        f"'opendata-queue broker --store {store} --listen tcp:0.0.0.0:{DEFAULT_PORT} --users FILE' on one host "
        f"and let the clients use opendata://thathost:{DEFAULT_PORT}",
    )
