"""Executed in place of Python to start an embedded broker: has it forked, see ``prepared_broker``.

It runs without ``site`` and imports only modules of the interpreter itself: that is why it is fast.
"""

from __future__ import annotations

import _socket
import marshal
import os
import resource
import sys

TYPE_CHECKING = False  # that of `typing` takes longer to import than all others
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: environment variables that only the start of a process reads
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "FAKETIME", "COVERAGE_")
_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})


def fingerprint(environment: Mapping[str, str] = os.environ) -> list[Any]:
    """Return what a forked process inherits and can't change."""
    read_at_start = sorted(item for item in environment.items() if item[0].startswith(_READ_AT_START))
    hard_limits = [resource.getrlimit(limit)[1] for limit in _LIMITS]
    return [os.getresuid(), os.getresgid(), sorted(os.getgroups()), hard_limits, read_at_start]


def request(arguments: list[str], environment: Mapping[str, str], folder: str, files: list[int]) -> bytes:
    """Return the encoded request for a process; its files, with these numbers, are sent with it."""
    umask = os.umask(0o077)
    os.umask(umask)
    wanted = {
        "fingerprint": fingerprint(environment),
        "arguments": arguments,
        "environment": dict(environment),
        "folder": folder,
        "umask": umask,
        "limits": [(limit, resource.getrlimit(limit)) for limit in _LIMITS],
        "files": files,
    }
    return marshal.dumps(wanted)


def _open_files() -> list[int]:
    return [fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.lexists(f"/proc/self/fd/{fd}")]


def _is_forked(address: str, arguments: list[str]) -> bool:
    """Have the broker forked with the open files of this process; return False if that is not possible."""
    files = _open_files()
    data = request(arguments, os.environ, os.getcwd(), files)
    rights = b"".join(file.to_bytes(4, sys.byteorder) for file in files)
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        connection.connect(address)
        connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        return connection.recv(1) == b"y"
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    _, real, address, *arguments = sys.argv
    if not _is_forked(address, arguments):
        os.execv(real, [real, *arguments])
