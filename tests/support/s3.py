"""An S3 server on this host, with a bucket and a count of what it was asked."""

from __future__ import annotations

import re
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from .processes import Child, Children, wait_until
from .s3_proxy import S3Proxy, s3_proxy

BUCKET = "queues"
_REQUEST = re.compile(r'"(GET|PUT|POST|DELETE|HEAD) (\S+)')


class S3:
    """A running server.

    Attributes:
        environment: what says to clients where it is.
        proxy: what its clients talk to.
    """

    def __init__(self, server: Child, port: int, proxy: S3Proxy) -> None:
        self._server, self._port = server, port
        self.proxy = proxy
        self.environment = {
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": f"http://127.0.0.1:{proxy.port}", "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip

    def another_way(self) -> AbstractContextManager[S3Proxy]:
        """One more proxy, for a client that shall lose the server alone. It must not create what others create."""
        return s3_proxy(self._port)

    def requests(self) -> list[str]:
        """The paths of all requests so far."""
        return [path for _method, path in self.log()]

    def log(self) -> list[tuple[str, str]]:
        """The method and the path of all requests so far, from the server's log."""
        return _REQUEST.findall(self._server.log.read_text())


class S3Process(Child):
    """A server, which may serve several tests after each other; ``before`` is put before its command."""

    def __init__(self, folder: Path, before: tuple[str, ...] = ()) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [*before, sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        super().__init__(command, folder / "s3.log", cwd=folder)

    def _is_up(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def empty(self) -> None:
        """Have an empty bucket and nothing else."""
        wait_until(self._is_up, 60, self.log.read_text)
        for path, method in (("moto-api/reset", "POST"), (BUCKET, "PUT")):
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", method=method)
            urllib.request.urlopen(request).close()


@contextmanager
def s3_named(server: S3Process) -> Iterator[S3]:
    """Name a server with an empty bucket to this process's clients, by a proxy of their own."""
    server.empty()
    with s3_proxy(server.port) as proxy, pytest.MonkeyPatch.context() as patch:
        found = S3(server, server.port, proxy)
        for name, value in found.environment.items():
            patch.setenv(name, value)
        yield found


@contextmanager
def s3_server(processes: Children, folder: Path) -> Iterator[S3]:
    """Start a server and name it to this process's clients."""
    server = S3Process(folder)
    processes.add(server)
    with s3_named(server) as found:
        yield found
