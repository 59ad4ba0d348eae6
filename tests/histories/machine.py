"""What the runs of a machine share: the server of forks, the library for faults, and a server for buckets."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from ..support.network import Network, has_netem, missing, network
from ..support.processes import ENDS_WITH_THREAD
from ..support.s3 import S3Process
from ..support.s3_proxy import S3Proxy, s3_proxy
from .processes import start_server
from .scenario import LINK_FAULTS, Scenario, host_names
from .system_faults import build_library

_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
}  # fmt: skip


def left_out() -> dict[str, str]:
    """Return the faults that this machine can't inject, and why."""
    if reason := missing():
        return dict.fromkeys(LINK_FAULTS, reason)
    return {} if has_netem() else {"delay packets": "the kernel has no netem"}


class Machine:
    """A context; its processes end with it.

    Attributes:
        left_out: the faults that it can't have, and why.
    """

    def __init__(self) -> None:
        self.left_out = left_out()
        self._folder = Path(tempfile.mkdtemp(prefix="odq-faults-", dir="/tmp"))
        self._lock = threading.Lock()
        self._s3: S3Process | None = None

    def __enter__(self) -> Self:
        self.library = build_library(self._folder)
        start_server(self.library)
        return self

    def __exit__(self, *_: object) -> None:
        if self._s3 is not None:
            self._s3.clean_up()
        shutil.rmtree(self._folder)

    @contextmanager
    def hosts(self, scenario: Scenario) -> Iterator[Network | None]:
        """The hosts of a run, where it has some and the machine can have them."""
        if not scenario.has_hosts or self.left_out.keys() >= set(LINK_FAULTS):
            yield None
            return
        with network(*host_names(scenario)) as made:
            yield made

    @contextmanager
    def bucket(self, is_needed: bool) -> Iterator[tuple[S3Proxy, dict[str, str]] | None]:
        """A proxy of its own for a run, and the environment that names it."""
        if not is_needed:
            yield None
            return
        with self._lock:
            if self._s3 is None:
                self._s3 = S3Process(self._folder, ENDS_WITH_THREAD)
                self._s3.empty()
                # for the readers in this process
                os.environ |= {**_CREDENTIALS, "AWS_ENDPOINT": f"http://127.0.0.1:{self._s3.port}"}
        with s3_proxy(self._s3.port) as proxy:
            yield proxy, {**_CREDENTIALS, "AWS_ENDPOINT": f"http://127.0.0.1:{proxy.port}"}
