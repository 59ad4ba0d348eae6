"""File systems of their own, to fill them up."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(*options: str) -> Iterator[Path]:
    """A file system in memory, mounted with these options."""
    folder = Path(tempfile.mkdtemp(prefix="odq-disk-", dir="/tmp"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], capture_output=True
    )
    try:
        if mounted.returncode:
            reason = f"file systems can't be mounted: {mounted.stderr.decode().strip()}"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
        yield folder
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()
