"""The secret of a login: from the URL, from the connection's options, from a file or from the environment."""

from __future__ import annotations

import os

from ..errors import RequestError
from ..private_file import read_private
from ..url import Address
from .connection_options import Options

FILE_VARIABLE = "OPENDATA_SECRET_FILE"
VARIABLE = "OPENDATA_SECRET"


def secret_of(user: str, broker: Address, options: Options) -> str:
    """The secret for the next login of a user; a file is read each time, so a new secret needs no new process.

    Raises:
        RequestError: the file can't be used; the text says why.
    """
    given = broker.secret or options.resolve_secret()
    if given or not user:
        return given or ""
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
