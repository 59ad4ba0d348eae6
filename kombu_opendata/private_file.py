"""Files that contain a secret, such as a private key or a password.

With ``o+r``, every user of the machine may read them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import OpenDataError


def read_private(path: Path | str, what: str, error: type[OpenDataError]) -> bytes:
    """Return the content of a file that not every user may read; its group may.

    Args:
        what: the name of the file in errors, such as ``the private key``.
        error: the class of that error.

    Raises:
        OpenDataError: of the given class; every user may read or write the file, or it can't be read.
    """
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & (stat.S_IROTH | stat.S_IWOTH):
                raise error(
                    f"{what} {path} is open to every user of this machine (mode {mode:03o}): chmod o-rwx {path}",
                    path=str(path),
                )
            return file.read()
    except OSError as exc:
        raise error(f"{what} {path} can't be read: {exc.strerror}", path=str(path)) from exc
