"""Executed in place of Python to start an embedded broker: has it forked, see ``prepared_broker``.

It runs without ``site`` and imports only modules that are part of the interpreter: that is why it is fast.
"""

from __future__ import annotations

import _socket
import marshal
import os
import resource
import sys
from typing import Any

#: environment variables that only the start of a process reads
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "FAKETIME", "COVERAGE_")
_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})


def fingerprint() -> list[Any]:
    """What a forked process has from the one that forks it."""
    environment = sorted(item for item in os.environ.items() if item[0].startswith(_READ_AT_START))
    hard_limits = [resource.getrlimit(limit)[1] for limit in _LIMITS]
    return [os.getresuid(), os.getresgid(), sorted(os.getgroups()), hard_limits, environment]


def _request(arguments: list[str]) -> dict[str, Any]:
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        "fingerprint": fingerprint(),
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
        "limits": [(limit, resource.getrlimit(limit)) for limit in _LIMITS],
    }


def _open_files() -> list[int]:
    return [fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.lexists(f"/proc/self/fd/{fd}")]


def _is_forked(address: str, arguments: list[str]) -> bool:
    """Whether the broker is forked, with the open files of this process."""
    files = _open_files()
    request = marshal.dumps({**_request(arguments), "files": files})
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in files)
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        connection.connect(address)
        connection.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        return connection.recv(1) == b"y"
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    _, real, address, *arguments = sys.argv
    if not _is_forked(address, arguments):
        os.execv(real, [real, *arguments])
