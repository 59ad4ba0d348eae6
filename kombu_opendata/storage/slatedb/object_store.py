"""The object store of a URL and its databases, with errors that a user can act on.

==================  ==============================================================================
URL                 store
==================  ==============================================================================
``file:///folder``  a local folder, created with mode 0700 if it is missing
``memory://name``   this process's memory; the same name is the same store until the process ends
``s3://bucket/p``   and ``gs:``, ``az:``, …: a bucket; ``p`` is a prefix of every database's path
==================  ==============================================================================
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from ... import errors
from ...bucket_credentials import read_credential_files, refuse_query
from . import ffi

_PROVIDERS = {"s3": "S3", "s3a": "S3", "gs": "GCS", "az": "AZURE", "azure": "AZURE", "abfs": "AZURE", "abfss": "AZURE"}
# The local store and the bucket clients escape other characters, and differ in how they do it.
_SAFE_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")

T = TypeVar("T")

_memory_stores: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a database.

    Attributes:
        url: the URL as specified, for messages.
        store: the binding's object store.
        path: the path of the database in the store.
        name: the name of the database as specified: the path without the URL's prefix.
        options: the provider's settings, as specified.
        folder: the folder of the database in the file system; None if it is elsewhere.
    """

    url: str
    store: Any
    path: str
    folder: Path | None = None
    name: str = ""


def locate(url: str, path: str, *, create: bool = True) -> Location:
    """Return the location of the database `path` in the store at `url`.

    Args:
        url: see the module's table.
        path: letters, digits, ``._-``, and ``/`` between the parts.
        create: create the folders of a local store and check that they can be written.

    Raises:
        errors.InvalidURL: the URL or the path can't be used.
        errors.StoreUnwritable: the folder can't be created or written.
        errors.StoreError: the settings in the environment are refused, or a file of credentials can't be used.
    """
    if not _SAFE_PATH.fullmatch(path):
        raise errors.InvalidURL(
            f"{path!r} can't name a database: use letters, digits, '.', '_' and '-', not starting with '.'", path=path
        )
    parts = urlsplit(url)
    if parts.scheme == "memory":
        return Location(url, _memory(parts.netloc + parts.path), path, name=path)
    if parts.scheme == "file":
        return _local(url, path, create)
    if parts.scheme not in _PROVIDERS or not parts.netloc:
        raise errors.InvalidURL(f"{url!r} is no object-store URL: use file:///folder or s3://bucket/prefix", url=url)
    refuse_query(url)
    prefix = unquote(parts.path).strip("/")
    return Location(url, _bucket(url), f"{prefix}/{path}" if prefix else path, name=path)


def _memory(name: str) -> Any:
    if not _memory_stores:
        atexit.register(_memory_stores.clear)  # module globals are cleared after the binding
    if name not in _memory_stores:
        _memory_stores[name] = ffi.public().ObjectStore.resolve("memory:///")
    return _memory_stores[name]


def _bucket(url: str) -> Any:
    u = ffi.public()
    parts = urlsplit(url)
    read_credential_files()
    try:
        builder = u.ObjectStoreBuilder.from_env(u.ObjectStoreType[_PROVIDERS[parts.scheme]])
        builder.with_url(f"{parts.scheme}://{parts.netloc}")
        return builder.build()
    except u.Error as error:
        raise errors.StoreError(f"the store {url} can't be used: {error}", url=url) from error


def _local(url: str, path: str, create: bool) -> Location:
    root = Path(unquote(url.removeprefix("file://")))  # not urlsplit's path: a folder's name may contain '#' or '?'
    if not root.is_absolute() or root == Path("/"):
        raise errors.InvalidURL(f"{url!r} names no folder: write file:///absolute/folder", url=url)
    folder = root / path
    if create:
        _make_writable(url, root, folder)
    elif not folder.is_dir():
        raise errors.StoreError(f"there is no store at {folder}", url=url)
    u = ffi.public()
    builder = u.ObjectStoreBuilder(u.ObjectStoreType.LOCAL)
    builder.with_config("local_path", str(root))
    return Location(url, builder.build(), path, folder, name=path)


def _make_writable(url: str, root: Path, folder: Path) -> None:
    """Create `folder` and check that a file can be created in it."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for step in [*reversed(folder.relative_to(root).parents), folder.relative_to(root)]:
            (root / step).mkdir(mode=0o700, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o600))
        probe.unlink()
    except OSError as error:
        raise errors.StoreUnwritable(
            f"the store's folder {folder} can't be written: {error.strerror} ({error.filename}); "
            "name another folder, or give this user the right to write there",
            url=url,
            path=str(folder),
            reason=error.strerror,
        ) from error


# ---- databases
async def database_exists(url: str, path: str) -> bool:
    """Return True if the store at `url` has a database `path`. Nothing is created.

    Raises:
        errors.StoreError: the store does not respond.
    """
    if url.startswith("file://"):
        return path in databases(url)
    location = locate(url, path)
    with translated(url):
        call = ffi.public().AdminBuilder(location.path, location.store).build().read_manifest(None)
        return await in_time(call, url, 30) is not None


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
            return await in_time(call, url, deadline_seconds)
    except errors.StoreError as error:
        # A manifest has no checksum: if it does not decode, SlateDB reports an internal error or panics.
        if isinstance(error.__cause__, (u.Error.Internal, u.InternalError)):
            text = f"the store {url} is damaged: SlateDB can't decode its files: {error.__cause__}"
            raise errors.CorruptRecord(text, url=url, key=b"", offset=0) from error.__cause__
        raise


async def in_time(call: Awaitable[T], url: str, deadline_seconds: float) -> T:
    """Return the result of a call; raise StoreSilent if there is none within ``deadline_seconds``."""
    try:
        return await asyncio.wait_for(call, deadline_seconds)
    except TimeoutError as error:
        raise errors.StoreSilent(
            f"the store {url} did not answer within {deadline_seconds:g} s: check the endpoint, the bucket and the "
            "credentials",
            url=url,
            deadline_seconds=deadline_seconds,
        ) from error


# ---- errors of SlateDB
@contextmanager
def translated(url: str) -> Iterator[None]:
    """Translate the binding's errors to this package's."""
    u = ffi.public()
    try:
        yield
    except u.Error.Closed as error:
        if error.reason is u.CloseReason.FENCED:
            raise errors.StoreFenced(f"another process writes to {url} now; this one must stop", url=url) from error
        raise errors.StoreError(f"the store {url} is closed: {error.message}", url=url) from error
    except u.Error.Data as error:
        text = f"the store {url} is damaged: {error.message}"
        raise errors.CorruptRecord(text, url=url, key=b"", offset=0) from error
    except (u.Error, u.InternalError) as error:
        raise errors.StoreError(f"the store {url} failed: {error}", url=url) from error
