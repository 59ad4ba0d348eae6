"""How a page is set up."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from ..client.connection_options import Options
from ..masking import NAMES


@dataclass(frozen=True)
class WebSettings:
    """Settings of a page, which are the same for everybody who opens it.

    Attributes:
        url: the broker's URL.
        options: of the connections to it.
        read_only: whether nothing can be changed through this page.
        masked_names: parts of the names of arguments and headers whose values are hidden.
        refresh_seconds: how often an open page shows new figures.
        is_open: whether who reaches the page may need no login: it listens on loopback, or is mounted in an app that
            has asked already.
        is_secure: whether browsers reach it by HTTPS.
        hosts: names under which browsers may reach it, beside those of loopback.
        proxies: networks of proxies that have asked who somebody is.
        user_header: where these say it.
        session_idle_seconds, session_seconds: when a login ends, after the last request and in any case.
        body_bytes: the largest body of a request.
    """

    url: str
    options: Options = field(default_factory=Options)
    read_only: bool = False
    masked_names: tuple[str, ...] = NAMES
    refresh_seconds: float = 2.0
    is_open: bool = True
    is_secure: bool = False
    hosts: tuple[str, ...] = ()
    proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    user_header: str = "X-Forwarded-User"
    session_idle_seconds: float = 3600.0
    session_seconds: float = 43_200.0
    body_bytes: int = 20 << 20
