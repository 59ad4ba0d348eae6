"""Prefix of a bucket for staged batches and backups, through ``obstore``, which uses the same clients as SlateDB.

The package is imported only when a bucket is opened, so executors that write to files don't need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from ..bucket_credentials import read_credential_files, refuse_query
from ..errors import DamagedBatch, InvalidURL, StoreError
from ..masking import masked
from .folder import Folder, FolderEntry, Output, unreadable

_SCHEMES = {"s3", "s3a", "gs", "az", "azure", "abfs", "abfss"}
#: size of one part of an upload
_PART_BYTES = 8 << 20
_UPLOADS = 2
_PAGE = 1000


class BucketFolder(Folder):
    """Prefix of a bucket. Credentials come from the environment, as in SlateDB."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.netloc:
            raise InvalidURL(f"{url!r} is not an object-store URL: use file:///folder or s3://bucket/prefix", url=url)
        refuse_query(url)
        self.url, self.name = url, masked(url)
        try:
            import obstore
        except ImportError as exc:
            raise StoreError(
                "batches and backups in a bucket need the package obstore: install kombu-opendata[objectstore] where "
                "this runs; for staged batches, on the broker's host and on the executors",
                extra="objectstore",
            ) from exc
        self._obs: Any = obstore
        self._not_found = (FileNotFoundError, self._obs.exceptions.NotFoundError)
        read_credential_files()
        client = {"allow_http": True} if options.get("endpoint", "").startswith("http://") else None
        try:
            self._store = self._obs.store.from_url(url, config=dict(options) or None, client_options=client)
        except (self._obs.exceptions.BaseError, ValueError, TypeError) as exc:
            raise StoreError(f"the store {url} can't be used: {exc}", url=url) from exc

    @contextmanager
    def errors(self, read: str = "") -> Iterator[None]:
        """Translate the package's errors; ``read`` is the batch that is read."""
        try:
            yield
        except (self._obs.exceptions.BaseError, OSError) as exc:
            if read and isinstance(exc, self._not_found):
                raise unreadable(read) from exc
            raise StoreError(f"the store {self.url} failed: {exc}", url=self.url) from exc

    def create(self, path: str) -> Output:
        return _BucketOutput(self, path)

    def size(self, path: str) -> int:
        with self.errors(path):
            return int(self._obs.head(self._store, path)["size"])

    def read(self, path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        starts = [offset for offset, _length in ranges]
        lengths = [length for _offset, length in ranges]
        try:
            with self.errors(path):
                return list(map(bytes, self._obs.get_ranges(self._store, path, starts=starts, lengths=lengths)))
        except StoreError:
            if self.size(path) < max(map(sum, ranges)):
                return [b"" for _ in ranges]  # the object became shorter; the caller handles this
            raise

    def entries(self, folder: str = "") -> Iterator[list[FolderEntry]]:
        with self.errors():
            for page in self._obs.list(self._store, f"{folder}/" if folder else None, chunk_size=_PAGE):
                yield [
                    FolderEntry(meta["path"], int(meta["size"]), int(1000 * meta["last_modified"].timestamp()))
                    for meta in page
                ]

    def folders(self) -> list[str]:
        with self.errors():
            return sorted(self._obs.list_with_delimiter(self._store)["common_prefixes"])

    def stream(self, path: str) -> Iterator[bytes]:
        try:
            with self.errors(path):
                yield from map(bytes, self._obs.get(self._store, path).stream(min_chunk_size=_PART_BYTES))
        except DamagedBatch as exc:
            raise FileNotFoundError(path) from exc

    def read_version(self, path: str) -> tuple[bytes, dict[str, str]] | None:
        """Return a small object and its version; None if there is none."""
        with self.errors():
            try:
                result = self._obs.get(self._store, path)
                return bytes(result.bytes()), version_of(result.meta)
            except self._not_found:
                return None

    def put_if(self, path: str, data: bytes, version: dict[str, str] | None) -> dict[str, str] | None:
        """Write an object if its version is still ``version``, which is None for an object that does not exist.

        Return the new version; None if the object was changed, and not written.
        """
        refused = self._obs.exceptions.AlreadyExistsError, self._obs.exceptions.PreconditionError, *self._not_found
        with self.errors():
            try:
                return version_of(self._obs.put(self._store, path, data, mode=version or "create", use_multipart=False))
            except refused:
                return None

    def delete(self, paths: Iterable[str]) -> int:
        count = 0
        for path in paths:
            with self.errors(), suppress(*self._not_found):
                self._obs.delete(self._store, path)
                count += 1
        return count


def version_of(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the version of an object in the form of a conditional write."""
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}


class _BucketOutput(Output):
    """Upload, in parts if it is large. The object appears when it is complete."""

    def __init__(self, bucket: BucketFolder, path: str) -> None:
        self._bucket = bucket
        self._writer = bucket._obs.open_writer(bucket._store, path, buffer_size=_PART_BYTES, max_concurrency=_UPLOADS)
        self._path = path
        self._committed = False

    def write(self, data: bytes) -> None:
        with self._bucket.errors():
            self._writer.write(data)

    def commit(self) -> None:
        with self._bucket.errors():
            self._writer.close()
            self._committed = True

    def abort(self) -> None:
        """Discard the upload. Parts of it are invisible; a lifecycle rule of the bucket removes them."""
        self._writer = None
        if self._committed:
            self._bucket.delete([self._path])
