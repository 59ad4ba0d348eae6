"""The databases of a store: a list of them, and an opening within a deadline."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Any
from urllib.parse import unquote

from ... import errors
from . import ffi
from .object_store import locate
from .slate_errors import translated


async def database_exists(url: str, path: str) -> bool:
    """Return True if the store at `url` has a database `path`. Nothing is created.

    Raises:
        errors.StoreError: the store does not respond.
    """
    if url.startswith("file://"):
        return path in databases(url)
    location = locate(url, path)
    with translated(url):
        reading = ffi.public().AdminBuilder(location.path, location.store).build().read_manifest(None)
        return await _in_time(reading, url, 30) is not None


def databases(url: str) -> list[str]:
    """Return the databases in a local store's folder; empty for other stores, which can't be listed.

    Raises:
        errors.StoreError: the folder can't be read.
    """
    if not url.startswith("file://"):
        return []
    root = unquote(url.removeprefix("file://"))
    try:
        return [name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name, "manifest"))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise errors.StoreError(f"the folder {root} can't be read: {error.strerror}", path=root) from error


async def build(builder: Any, url: str, deadline_seconds: float) -> Any:
    """Open the database of one of the binding's builders; raise as :func:`answered`."""
    return await answered(builder.build(), url, deadline_seconds)


async def answered(call: Awaitable[Any], url: str, deadline_seconds: float) -> Any:
    """Return the result of one of the binding's calls.

    Raises:
        errors.StoreSilent: the store did not respond within `deadline_seconds`.
        errors.StoreError: the store refused the call.
        errors.CorruptRecord: the database is damaged.
    """
    u = ffi.public()
    try:
        with translated(url):
            return await _in_time(call, url, deadline_seconds)
    except errors.StoreError as error:
        # A manifest has no checksum: if it does not decode, SlateDB reports an internal error or panics.
        if isinstance(error.__cause__, (u.Error.Internal, u.InternalError)):
            text = f"the store {url} is damaged: SlateDB can't decode its files: {error.__cause__}"
            raise errors.CorruptRecord(text, url=url, key=b"", offset=0) from error.__cause__
        raise


async def _in_time(call: Awaitable[Any], url: str, deadline_seconds: float) -> Any:
    try:
        return await asyncio.wait_for(call, deadline_seconds)
    except TimeoutError as error:
        raise errors.StoreSilent(
            f"the store {url} did not answer within {deadline_seconds:g} s: check the endpoint, the bucket and the "
            "credentials",
            url=url,
            deadline_seconds=deadline_seconds,
        ) from error
