"""Secret of a login: from the URL, the connection's options, a file or the environment."""

from __future__ import annotations

import os

from ..errors import RequestError
from ..file_system import read_private
from ..url import Address
from .connection_options import Options

FILE_VARIABLE = "OPENDATA_SECRET_FILE"
VARIABLE = "OPENDATA_SECRET"


def secret_of(user: str, broker: Address, options: Options) -> str:
    """Return the secret for a user's next login. A file is read each time, so a new secret needs no restart.

    Raises:
        RequestError: the file can't be used; the text has the reason.
    """
    configured = broker.secret or options.resolve_secret()
    if configured or not user:
        return configured or ""
    if path := os.environ.get(FILE_VARIABLE):
        return _read(path)
    return os.environ.get(VARIABLE, "")


def _read(path: str) -> str:
    data = read_private(path, f"the file of ${FILE_VARIABLE},", RequestError)
    try:
        secret = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as exc:
        raise RequestError(f"the file of ${FILE_VARIABLE}, {path} is not UTF-8", path=path) from exc
    if not secret:
        raise RequestError(f"the file of ${FILE_VARIABLE}, {path} is empty: write the secret into it", path=path)
    return secret
