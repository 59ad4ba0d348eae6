"""Addresses that a broker listens on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

MAX_SOCKET_PATH_BYTES = 107
DEFAULT_PORT = 5677
#: hosts that stand for all addresses of the machine
WILDCARDS = {"0.0.0.0", "::"}
LOOPBACK = {"127.0.0.1", "::1", "localhost"}


@dataclass(frozen=True)
class Listen:
    """Address to listen on: a Unix socket's ``path``, or ``host`` and ``port``."""

    path: str = ""
    host: str = ""
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"tcp:{self.authority}"

    @property
    def authority(self) -> str:
        """Address as ``HOST:PORT``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str, folder: str = "") -> Listen:
    """Return the address in ``unix:PATH`` or ``tcp:HOST:PORT`` (``tcp:[::1]:5677`` for IPv6).

    A relative path starts at ``folder``; empty means the current folder. Raise ValueError for other texts.
    """
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest and "\0" not in rest:
        path = os.path.join(folder, rest)
        size = len(os.fsencode(path))
        if size > MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"the socket path {path} has {size} bytes, the system's limit is {MAX_SOCKET_PATH_BYTES}: "
                "use a shorter folder, or tcp:HOST:PORT"
            )
        return Listen(path=path)
    address = _parse_authority(rest, DEFAULT_PORT)
    if kind != "tcp" or address is None:
        raise ValueError(f"{text!r} is neither unix:PATH nor tcp:HOST:PORT (a port is at most 65535)")
    return address


def parse_authority(text: str) -> Listen:
    """Return the address in ``HOST:PORT``, ``[::1]:PORT``, or ``PORT`` on loopback; port 0 means any free port.

    Raise ValueError for other texts.
    """
    address = _parse_authority(f":{text}" if text.isdecimal() else text, -1)
    if address is None or address.port < 0:
        raise ValueError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9464 or [::1]:9464")
    return address


def _parse_authority(text: str, default_port: int) -> Listen | None:
    """Read a host and a port, each of which may be missing; the default host is loopback."""
    match = re.fullmatch(r"(\[[^\]\s\0]+\]|[^:\[\]\s\0]*)(?::([0-9]{1,5}))?", text)
    if match is None or int(match[2] or 0) > 65_535:
        return None
    return Listen(host=match[1].strip("[]") or "127.0.0.1", port=int(match[2]) if match[2] else default_port)
