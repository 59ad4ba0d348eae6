"""``opendata-queue`` that kills itself (``kill -9``) in the middle of the Nth file that it writes: N, arguments."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Iterable, Iterator

from kombu_opendata.cli import main
from kombu_opendata.offline.backup.folders import BackupFolder

_LAST = int(sys.argv.pop(1))
_numbers = itertools.count(1)
_write = BackupFolder.write


def _half(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield piece[: len(piece) // 2]
        break
    os.kill(os.getpid(), signal.SIGKILL)


def write(place: BackupFolder, path: str, pieces: Iterable[bytes]) -> None:
    _write(place, path, _half(pieces) if next(_numbers) == _LAST else pieces)


BackupFolder.write = write  # type: ignore[assignment,method-assign]
main()
