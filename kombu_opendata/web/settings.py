"""Settings of the web UI."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from ..client.connection_options import Options
from ..masking import NAMES


@dataclass(frozen=True)
class WebSettings:
    """Settings of the web UI, the same for all users.

    Attributes:
        read_only: whether the web UI refuses all changes.
        masked_names: parts of the names of arguments and headers whose values are hidden.
        refresh_seconds: the interval at which open views refresh.
        is_open: whether the web UI may be used without a login: it listens on loopback, or is mounted in an app that
            authenticates its users.
        is_secure: whether browsers use HTTPS.
        hosts: names under which browsers may reach the web UI, beside those of loopback.
        proxies: networks of proxies that authenticate users.
        user_header: the header in which these proxies send the user's name.
        session_idle_seconds, session_seconds: the limits of a login: since the last request, and in total.
        trace_url: the address of a trace, with ``{trace_id}``; empty for no links.
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
    trace_url: str = ""
    body_bytes: int = 20 << 20
