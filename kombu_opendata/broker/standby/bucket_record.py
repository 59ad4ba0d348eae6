"""The active record in a bucket: read, and written only in place of the version that was read."""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from ...bucket_credentials import read_credential_files
from ...errors import StartError, StoreError
from ...staging.bucket_folder import version_of
from .active_record import RECORD_NAME, ActiveRecord, decode, encode

#: maximum duration of one request, with the client's own retries
_REQUEST_SECONDS = 5.0


class VersionedRecord(NamedTuple):
    """A record, and the version of its object."""

    record: ActiveRecord
    version: dict[str, str]


class RecordChanged(Exception):
    """Another broker wrote the record after it was read."""


class BucketRecord:
    """The record of one store.

    Raises:
        StartError: the package ``obstore`` is missing.
        StoreError: the URL, the environment or a file of credentials is wrong.
    """

    def __init__(self, url: str) -> None:
        try:
            import obstore
        except ImportError as exc:
            raise StartError(
                "a broker on a bucket needs the package obstore: install kombu-opendata[objectstore]",
                extra="objectstore",
            ) from exc
        read_credential_files()
        self.url = url
        self._obs = obstore
        self._changed = (
            obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError,
            obstore.exceptions.NotFoundError, FileNotFoundError,
        )  # fmt: skip
        try:
            self._store = obstore.store.from_url(url)
        except (obstore.exceptions.BaseError, ValueError, TypeError) as exc:
            raise StoreError(f"the store {url} can't be used: {exc}", url=url) from exc

    async def read(self) -> VersionedRecord | None:
        """Return the record; None if the store has none.

        Raises:
            StoreError: the store does not respond.
            NewerFormat, CorruptRecord: the record can't be read.
        """
        try:
            response = await self._ask(self._obs.get_async(self._store, RECORD_NAME))
            return VersionedRecord(decode(bytes(await self._ask(response.bytes_async()))), version_of(response.meta))
        except (FileNotFoundError, self._obs.exceptions.NotFoundError):
            return None

    async def write(self, record: ActiveRecord, replacing: VersionedRecord | None) -> VersionedRecord:
        """Write the record in place of another one, or as the first one.

        Raises:
            RecordChanged: another broker wrote the record first.
            StoreError: the store does not respond; the record may have been written.
        """
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = msgspec.structs.replace(record, serial=secrets.token_hex(8), written_at=at)
        mode: Any = "create" if replacing is None else replacing.version
        try:
            put = await self._ask(self._obs.put_async(self._store, RECORD_NAME, encode(record), mode=mode))
            return VersionedRecord(record, version_of(put))
        except self._changed:
            current = await self.read()  # the client repeats a put whose response was lost
            if current is None or current.record.serial != record.serial:
                raise RecordChanged from None
            return current

    async def _ask(self, request: Any) -> Any:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                return await request
        except TimeoutError as exc:
            raise StoreError(
                f"the store {self.url} did not answer within {_REQUEST_SECONDS:g} s", url=self.url
            ) from exc
        except self._changed:
            raise
        except (self._obs.exceptions.BaseError, OSError) as exc:
            raise StoreError(f"the store {self.url} failed: {exc}", url=self.url) from exc
