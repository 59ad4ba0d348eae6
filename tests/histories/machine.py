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

from ..support.processes import ENDS_WITH_THREAD
from ..support.s3 import S3Process
from ..support.s3_proxy import S3Proxy, s3_proxy
from .processes import start_server
from .system_faults import build_library

_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
}  # fmt: skip


class Machine:
    """A context; its processes end with it."""

    def __init__(self) -> None:
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
