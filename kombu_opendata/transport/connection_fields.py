"""Fields of a kombu.Connection (``hostname``, ``userid``, ``port`` …) and the address that they represent.

Kombu must not parse the first URL: it would cut a folder's name or a secret at a ``#``, and show part of a secret in
its error. Therefore the transport makes Kombu leave the whole URL in ``hostname``. When the connection gets its
transport, before ``Connection.info()`` reads the fields, this package's parser sets them to these values:

============  ====================================================  ==================
field         a broker on a host                                    a folder's broker
============  ====================================================  ==================
hostname      the host                                              the folder, percent-encoded
port          the port                                              None
userid        the user, else the argument ``userid``                None
password      the secret, else the argument ``password``            None
virtual_host  the instance                                          the instance
============  ====================================================  ==================

For a broker behind a Unix socket, hostname is the percent-encoded path of the socket (its slashes too), and port is
None. For a list of hosts, hostname is the list with all ports, and port is None. ``opendata+memory://`` URLs and
invalid ones stay unchanged.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote, urlsplit

from kombu.utils.url import parse_url

from .. import url as urls
from ..errors import InvalidURL
from ..masking import SCHEME, masked
from ..url import Address


class Secret(str):
    """Secret that its repr hides, so that a dictionary of fields can be logged."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'**'"


class Hidden(str):
    """URL, or a part of one, whose secret its repr masks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(masked(self) if "://" in self else "**")


class FilledIn(str):
    """Hostname that was set from a URL together with the other fields."""

    __slots__ = ()


def fill_in(client: Any) -> None:
    """Set the fields from the connection's current URL."""
    pool_key = client.__eqhash__()  # Kombu's pools look up a connection by its fields before this change
    client.__eqhash__ = lambda: pool_key
    client.alt = [Hidden(alternate) for alternate in client.alt]
    if any("@" in part and not SCHEME.match(part) for part in client.alt):  # Kombu cut a URL at the ';' of its secret
        client.hostname = Hidden(";".join(client.alt))
        client.alt = [client.hostname]
    try:
        address = address_of(client)
    except InvalidURL:  # raised by the connect
        client.hostname = Hidden(_whole(client))
        client.uri_prefix = None
        return
    if address.kind == "memory":
        return
    is_one_host = address.kind == "tcp" and not address.others
    client.hostname = FilledIn(quote(address.folder) or (address.host if is_one_host else address.hosts))
    client.port = address.port if is_one_host else None
    client.virtual_host = address.instance
    client.userid = address.user or client.userid
    if address.secret:
        client.password = Secret(address.secret)


def address_of(client: Any) -> Address:
    """Return the broker's address for a kombu.Connection.

    At a failover, Kombu parses the next URL itself, and keeps the former port and virtual host if that URL has none.
    Therefore the URL is looked up in the list again.

    Raises:
        InvalidURL: the fields are not those of a broker.
    """
    hostname = client.hostname
    if hostname and "://" in hostname:
        return urls.parse(_whole(client))
    if not isinstance(hostname, FilledIn):
        for alternate in client.alt:
            if _is_current(client, alternate):
                return urls.parse(alternate)
    scheme = str(client.transport_cls)
    if scheme == "opendata+memory":
        return urls.memory(hostname or "")
    vhost = client.virtual_host or ""
    if not hostname:
        return urls.embedded("/" + vhost.lstrip("/"))
    if hostname.startswith("/"):
        return urls.embedded(unquote(hostname))
    secret = "" if callable(client.password) else str(client.password or "")
    hosts = [(str(hostname), client.port or urls.DEFAULT_PORT)]
    if hostname.startswith("%2F") or "," in hostname:
        try:
            hosts = urls.read_hosts(hostname, client.port)
        except ValueError as exc:
            raise urls.invalid(f"{scheme}://{hostname}", str(exc)) from None
    return urls.at_hosts(hosts, vhost, client.userid or "", secret, tls=scheme == "opendatas")


def addresses_of(client: Any) -> list[Address]:
    """Return the address of a kombu.Connection and those that it may fail over to."""
    return [address_of(client), *(urls.parse(alternate) for alternate in client.alt if "://" in alternate)]


def check_alternates(client: Any) -> None:
    """Check the failover URLs before Kombu uses one: Kombu's error would show parts of a secret.

    Raises:
        InvalidURL: one of them can't be used.
    """
    for alternate in client.alt:
        if alternate.partition("://")[0] in urls.SCHEMES:
            urls.parse(alternate)
            try:
                parse_url(alternate)
            except ValueError:
                why = "Kombu can't fail over to a list of hosts with ports: list all in one URL"
                raise urls.invalid(
                    alternate, why if urls.parse(alternate).others else "percent-encode the user and the secret"
                ) from None


def _whole(client: Any) -> str:
    """Return the URL in ``hostname``, with the part of the scheme before a ``+``, which Kombu removes."""
    prefix, hostname = client.uri_prefix, str(client.hostname)
    return f"{prefix}+{hostname}" if prefix and not hostname.startswith(f"{prefix}+") else hostname


def _is_current(client: Any, alternate: str) -> bool:
    if "://" not in alternate:
        return False
    try:
        parts = parse_url(alternate)
    except ValueError:
        return False
    same_host = parts["hostname"] == client.hostname and urlsplit(alternate).scheme == str(client.transport_cls)
    return same_host and all(
        stated is None or stated == current
        for stated, current in ((parts["port"], client.port), (parts["virtual_host"], client.virtual_host))
    )
