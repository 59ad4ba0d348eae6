"""The process of ``prepared_broker`` that imports what a broker needs, and forks one for each request."""

from __future__ import annotations

import ctypes
import gc
import marshal
import os
import resource
import runpy
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

_REQUEST_BYTES = 1 << 18
_EMBEDDED = ["-m", "kombu_opendata.cli"]


def _fork_brokers(listener: socket.socket) -> list[str]:
    """Fork a broker for each request until the tests end; return in the broker, with its arguments."""
    fingerprint = runpy.run_path(str(Path(__file__).with_name("broker_launcher.py")))["fingerprint"]()
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        connection, _ = listener.accept()
        data, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 64)
        request = marshal.loads(data)
        answer = b"n"
        if request["fingerprint"] == fingerprint:
            child = os.fork()
            if child == 0:
                # An embedded broker forks itself: see kombu_opendata/cli/__main__.py.
                if request["arguments"][:2] != _EMBEDDED and (broker := os.fork()) != 0:
                    connection.send(b"%d" % broker)
                    os._exit(0)
                listener.close()
                connection.close()
                return _take_over(request, files)
            os.waitpid(child, 0)
            answer = b"y"
        for file in files:
            os.close(file)
        connection.send(answer)
        connection.close()


def _take_over(request: dict[str, Any], files: list[int]) -> list[str]:
    """Become what is requested; return the arguments."""
    os.setsid()
    above = 1 + max(*files, *request["files"])
    for place, file in enumerate(files):
        os.dup2(file, above + place)
        os.close(file)
    for place, file in enumerate(request["files"]):
        os.dup2(above + place, file)
        os.close(above + place)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    os.umask(request["umask"])
    for limit, values in request["limits"]:
        resource.setrlimit(limit, values)
    arguments: list[str] = request["arguments"]
    _show_command_line([sys.executable, *arguments])
    return arguments


def _show_command_line(words: list[str]) -> None:
    """Have /proc name these, in the memory where the kernel put the process's own."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def _run() -> int:
    sys.path.insert(0, os.getcwd())
    listener = socket.socket(fileno=int(sys.argv[1]))
    import slatedb.uniffi  # noqa: F401
    import uvloop  # noqa: F401

    from kombu_opendata.broker.process import process  # noqa: F401
    from kombu_opendata.cli import __main__ as program
    from kombu_opendata.cli import main, root  # noqa: F401
    from kombu_opendata.configuration import sources  # noqa: F401
    from kombu_opendata.storage.slatedb import ffi_native, ffi_polls  # noqa: F401

    gc.freeze()
    arguments = _fork_brokers(listener)
    if arguments[:2] == _EMBEDDED:
        sys.argv = [str(program.__file__), *arguments[2:]]
        return program.main()
    sys.argv = arguments
    main()
    return 0


if __name__ == "__main__":
    sys.exit(_run())
