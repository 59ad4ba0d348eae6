"""Broker URLs.

=========================================================  ==========================================================
URL                                                        broker
=========================================================  ==========================================================
``opendata:///abs/folder``                                 the embedded broker of a folder, started when needed
``opendata://[user:secret@]host[:port][/instance]``        a broker on a host, over TCP
``opendatas://[user:secret@]host[:port][/instance]``       a broker on a host, over TLS
``opendata://[user:secret@]%2Frun%2Fq.sock[/instance]``    a broker on this machine, over its Unix socket
``opendata://[user:secret@]host,host:port[/instance]``     the active broker of a store and its standbys, in any order;
                                                           also with TLS, and for Unix sockets
``opendata+memory://name``                                 a broker inside this process, for unit tests
=========================================================  ==========================================================

User, secret, host, folder and instance are percent-decoded. ``/``, ``?`` and ``#`` in a secret must be percent-encoded,
because they would end the host of the URL.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Literal
from urllib.parse import quote, unquote

from .errors import InvalidURL
from .masking import HOST, SCHEME, masked, split_authority

DEFAULT_PORT = 5677
DEFAULT_INSTANCE = "default"
SOCKET_NAME = "broker.sock"
LOCK_NAME = "broker.lock"
LOG_NAME = "broker.log"
#: file in a folder or bucket into which a store is being restored
RESTORE_NAME = "restore.incomplete"

_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: control characters; and surrogates, which stand for bytes of a command line or a file's name that are not UTF-8
_UNUSABLE = re.compile("[\0-\x1f\ud800-\udfff]")
_IN_BRACKETS = re.compile(r"[0-9A-Fa-f:.%]+")
_STORE_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
#: schemes of object stores, whose URLs are for the broker
STORE_SCHEMES = frozenset({"s3", "s3a", "az", "abfs", "abfss", "adl", "azure", "gs", "gcs", "http", "https"})

_ENCODE = "percent-encode the user and the secret: '/' is %2F, '?' is %3F, '#' is %23, ';' is %3B"
_SOCKET = "a Unix socket has neither a port nor TLS; write opendata://%2Frun%2Fapp.sock/instance"
SCHEMES = ("opendata", "opendatas", "opendata+memory")

Kind = Literal["embedded", "tcp", "unix", "memory"]
#: a host and its port; or the path of a Unix socket, and the default port
Host = tuple[str, int]
Place = tuple[str, str, frozenset[Host], str, str]


@dataclass(frozen=True)
class Address:
    """Address of a broker."""

    kind: Kind  # kind of connection
    folder: str = ""  # absolute path of the store (embedded)
    host: str = ""  # first or only host (tcp), or absolute path of its socket (unix)
    port: int = DEFAULT_PORT  # port of the host (tcp)
    instance: str = DEFAULT_INSTANCE  # database in the broker's store, AMQP's virtual host
    user: str = ""  # name for the login (tcp and unix)
    secret: str = field(default="", repr=False)  # secret for the login (tcp and unix)
    tls: bool = False  # True for a connection over TLS (tcp)
    name: str = ""  # name of a broker in this process (memory)
    #: hosts of the store's other brokers; one of all these brokers is active, the others are standbys (tcp and unix)
    others: tuple[Host, ...] = ()

    @property
    def place(self) -> Place:
        """Address without the user and the secret; the order of the hosts does not matter."""
        hosts = frozenset(((self.host, self.port), *self.others))
        return (self.kind, self.folder, hosts, self.instance, self.name)

    @property
    def each(self) -> list[Address]:
        """Address of each broker in the list."""
        if not self.others:
            return [self]
        return [replace(self, host=host, port=port, others=()) for host, port in ((self.host, self.port), *self.others)]

    @property
    def hosts(self) -> str:
        """Hosts in the form of a URL: with ports (for tcp), or percent-encoded (for unix)."""
        return ",".join(_host_text(host, port) for host, port in ((self.host, self.port), *self.others))

    @property
    def socket_path(self) -> str:
        """Path of the broker's Unix socket (for embedded and unix)."""
        return self.host if self.kind == "unix" else f"{self.folder}/{SOCKET_NAME}"

    @property
    def log_path(self) -> str:
        """Log of an embedded broker."""
        return f"{self.folder}/{LOG_NAME}"

    def as_uri(self, include_secret: bool = False, mask: str = "**") -> str:
        """Return the URL of this address; the secret is masked unless ``include_secret`` is set."""
        if self.kind == "embedded":
            return f"opendata://{quote(self.folder)}"
        if self.kind == "memory":
            return f"opendata+memory://{quote(self.name, safe='')}"
        login = ""
        if self.user or self.secret:
            secret = quote(self.secret, safe="") if include_secret else mask
            login = quote(self.user, safe="") + (f":{secret}" if self.secret else "") + "@"
        return f"opendata{'s' if self.tls else ''}://{login}{self.hosts}/{self.instance}"

    def __str__(self) -> str:
        return self.as_uri()


def parse(url: str) -> Address:
    """Return the address in a broker URL; for an invalid URL, raise InvalidURL with the remedy."""
    if _UNUSABLE.search(url):
        raise invalid(url, "it has control characters, or bytes that are not UTF-8; percent-encode them")
    scheme, _, rest = url.partition("://")
    if SCHEME.match(url) is None:
        raise invalid(url, "it is not a URL; write opendata:///absolute/folder or opendata://host:port")
    if scheme in ("opendata+memory", "memory"):
        return memory(unquote(rest.strip("/")))
    if scheme.removeprefix("opendata+") in STORE_SCHEMES:
        raise _remote_store(url, url.removeprefix("opendata+"))
    if scheme not in ("opendata", "opendatas"):
        raise invalid(url, f"{scheme!r} is not one of {', '.join(SCHEMES)}{did_you_mean(scheme)}")
    store = _STORE_URL.match(rest)
    if store is not None and store[1] in STORE_SCHEMES | {"file"}:
        raise _remote_store(url, rest)
    if rest.startswith("/"):
        if scheme == "opendatas":
            raise invalid(url, "a folder is reached without TLS; write opendata:///absolute/folder")
        if "?" in rest or "#" in rest:
            raise invalid(url, "a folder takes no query; give options as transport options, or write %3F or %23")
        return embedded(unquote(rest))
    if rest.startswith((".", "~")):
        raise invalid(url, "the folder must be absolute, and a host can't begin like this; write opendata:///folder")
    return _parse_host(url, scheme, rest)


def did_you_mean(scheme: str) -> str:
    """Return the suffix of an error about an unknown scheme: the most similar scheme, or nothing."""
    similar = get_close_matches(scheme.lower(), SCHEMES, n=1, cutoff=0.7)
    return f"; did you mean {similar[0]}://?" if similar else ""


def _parse_host(url: str, scheme: str, rest: str) -> Address:
    authority, path = split_authority(rest)
    if "@" in path:
        raise invalid(url, _ENCODE)
    if "?" in path or "#" in path:
        raise invalid(url, "it takes no query; give options as transport options")
    login, _, place = authority.rpartition("@")
    user, _, secret = login.partition(":")
    if not place:
        raise invalid(url, "it names neither a folder nor a host; write opendata:///absolute/folder")
    if "," in login.rpartition("@")[2] and "@" in login:
        raise invalid(
            url,
            "the user and the secret are written once, before the first host; if that is the secret, percent-encode "
            "'@' as %40 and ',' as %2C",
        )
    try:
        hosts = read_hosts(place)
    except ValueError as exc:
        raise invalid(url, f"{exc}; if it has a secret, {_ENCODE}") from None
    if scheme == "opendatas" and _is_socket(hosts[0][0]):
        raise invalid(url, _SOCKET)
    return at_hosts(hosts, unquote(path), unquote(user), unquote(secret), tls=scheme == "opendatas")


def read_hosts(text: str, port: int | None = None) -> list[Host]:
    """Return the hosts, or the percent-encoded paths of Unix sockets, in a list separated by commas.

    ``port`` is for hosts without one (None: the default). Raise ValueError with the reason for an invalid list.
    """
    hosts = list(dict.fromkeys(_read_host(part, port) for part in text.split(",")))
    if len({_is_socket(host) for host, _ in hosts}) > 1:
        raise ValueError("a list has either hosts or Unix sockets, not both")
    return hosts


def _read_host(text: str, port: int | None) -> Host:
    if not text:
        raise ValueError("a host is missing before or after a ','")
    match = HOST.fullmatch(text)
    if match is None or int(match[2] or 0) > 65_535:
        raise ValueError("each host is followed by nothing or by ':' and a port up to 65535")
    host = unquote(match[1].strip("[]"))
    if host.startswith((".", "~")):
        raise ValueError("a host can't begin with '.' or '~'")
    if match[1].startswith("["):
        if not _IN_BRACKETS.fullmatch(host):
            raise ValueError("brackets are for an IPv6 address")
    elif ":" in host and not _is_socket(host):
        raise ValueError("a host has a ':' only in brackets")
    if not _is_socket(host):
        return host.lower(), int(match[2] or 0) or port or DEFAULT_PORT
    if match[2] is not None:
        raise ValueError(_SOCKET)
    return host, DEFAULT_PORT


def _host_text(host: str, port: int) -> str:
    if _is_socket(host):
        return quote(host, safe="")
    text = quote(host, safe=":")
    return f"[{text}]:{port}" if ":" in host else f"{text}:{port}"


def _is_socket(host: str) -> bool:
    return host.startswith("/")


def embedded(folder: str) -> Address:
    """Return the address of the embedded broker of an absolute folder."""
    url = f"opendata://{folder}"
    if not folder.startswith("/"):
        raise invalid(url, "the folder must be absolute")
    if _UNUSABLE.search(folder):
        raise invalid(url, "the folder's name has control characters, or bytes that are not UTF-8")
    clean = "/" + posixpath.normpath(folder).lstrip("/")
    if clean == "/":
        raise invalid(url, "it names no folder")
    return Address("embedded", folder=clean)


def at_hosts(hosts: Sequence[Host], instance: str, user: str, secret: str, *, tls: bool) -> Address:
    """Return the address of the brokers of one store on these hosts, or behind these sockets.

    An empty instance (or AMQP's ``/``) means the default instance.
    """
    (host, port), *others = hosts
    instance = _instance(_host_text(host, port), instance)
    kind: Kind = "unix" if _is_socket(host) else "tcp"
    return Address(kind, "", host, port, instance, user, secret, tls, others=tuple(others))


def _instance(host: str, instance: str) -> str:
    instance = instance.strip("/") or DEFAULT_INSTANCE
    if not _INSTANCE.fullmatch(instance):
        raise invalid(
            f"opendata://{host}/{instance}",
            "the instance is one name of letters, digits, '.', '_' and '-' "
            "(for a folder write three slashes: opendata:///absolute/folder)",
        )
    return instance


def memory(name: str) -> Address:
    """Return the address of a broker inside this process."""
    return Address("memory", name=name or DEFAULT_INSTANCE)


def invalid(url: str, why: str) -> InvalidURL:
    """Return the error with the reason why a URL can't be used; its secret is masked."""
    shown = masked(url)
    return InvalidURL(f"broker URL {shown!r} can't be used: {why}", url=shown)


def _remote_store(url: str, store: str) -> InvalidURL:
    scheme, _, path = store.partition(":")
    if scheme == "file":
        return invalid(url, f"a client names the folder itself; write opendata:///{path.lstrip('/')}")
    store = masked(store)
    return invalid(
        url,
        "a store is given to the broker, not to a client, because a store has one writer: run "
        f"'opendata-queue broker --store {store} --listen tcp:0.0.0.0:{DEFAULT_PORT} --users FILE' on one host "
        f"and let the clients use opendata://thathost:{DEFAULT_PORT}",
    )
