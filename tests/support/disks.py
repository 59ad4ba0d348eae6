"""File systems of their own, to fill them up, and writes that fail."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def failing(code: int) -> Any:
    """A function in place of ``os.write`` and its like, that raises an error with this number."""

    def fail(*_arguments: Any) -> int:
        raise OSError(code, os.strerror(code))

    return fail


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


@contextmanager
def remote_disk(kind: str) -> Iterator[Path]:
    """An empty folder on a file system of this type, such as ``fuse.sshfs``, that the kernel takes for a real one."""
    folder = Path(tempfile.mkdtemp(prefix="odq-disk-", dir="/tmp"))
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}".encode()
        if libc.mount(b"user@host:/", bytes(folder), kind.encode(), 0, options):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as exc:
        folder.rmdir()
        if os.environ.get("CI"):
            pytest.fail(f"file systems can't be mounted: {exc}")
        pytest.skip(f"file systems can't be mounted: {exc}")
    threading.Thread(target=_serve_empty_folder, args=(device,), daemon=True).start()
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        os.close(device)
        folder.rmdir()


def _serve_empty_folder(device: int) -> None:
    """Answer the kernel: the root is a folder of this user, and there is nothing in it."""
    init, getattr_, lookup, statfs, enoent, enosys = 26, 3, 1, 17, -2, -38
    root = struct.pack("<QII6Q3I7I", 1, 0, 0, 1, *[0] * 5, *[0] * 3, 0o40700, 2, os.geteuid(), os.getegid(), 0, 4096, 0)
    answers = {
        init: struct.pack("<4IHHIIHHI7I", 7, 31, 0, 0, 0, 0, 4096, 1, 1, 0, *[0] * 8),
        getattr_: root,
        statfs: struct.pack("<5Q10I", *[1 << 30] * 5, 4096, 255, 4096, *[0] * 7),
    }
    while True:
        try:
            request = os.read(device, 1 << 17)
        except OSError:  # it was unmounted
            return
        _length, operation, unique = struct.unpack_from("<IIQ", request)
        body = answers.get(operation, b"")
        error = 0 if body else enoent if operation == lookup else enosys
        os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
