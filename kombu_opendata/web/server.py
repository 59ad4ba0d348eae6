"""HTTP server of the web UI."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from .access import audit
from .app import create_app
from .settings import WebSettings


class _Server(uvicorn.Server):
    """Server that shuts down in order on a signal; uvicorn's server would raise the signal again afterwards."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def serve(
    settings: WebSettings,
    host: str,
    port: int,
    announce: Callable[[str], object],
    certificate: tuple[str, str] = ("", ""),
) -> None:
    """Serve until SIGINT or SIGTERM; open event streams don't delay the shutdown.

    Args:
        port: the port to listen on; 0 means any free one.
        announce: called with the URL of the web UI when it listens.
        certificate: the files of the certificate and its key, for HTTPS.

    Raises:
        OSError: the address can't be used.
    """
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    url_host = f"[{host}]" if ":" in host else host
    file, key = certificate
    announce(f"http{'s' if file else ''}://{url_host}:{listener.getsockname()[1]}/")
    config = uvicorn.Config(
        create_app(settings),
        log_level="warning",
        timeout_graceful_shutdown=5,
        server_header=False,
        proxy_headers=False,  # the web UI decides which proxies to trust
        ssl_certfile=file or None,
        ssl_keyfile=key or None,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    audit.log.setLevel(logging.INFO)
    audit.log.propagate = False
    audit.log.handlers = [handler]
    _Server(config).run([listener])
