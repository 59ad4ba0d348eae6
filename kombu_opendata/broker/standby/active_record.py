"""Active record: the identity and addresses of a store's active broker. JSON, see RFC 0009.

In a bucket, a write of the record replaces only the version that was read. In a folder, the record is a file.

``process`` is the identity of the active broker's process, ``BOOT/NAMESPACE/PID/START``: the id of the host's boot, the
namespace of process ids (each container has its own), the process id, and the start of the process in clock ticks after
the boot. Another process on the same host can check by it whether the active broker has ended. ``process`` is empty on
a system without ``/proc``.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...bucket_credentials import read_credential_files
from ...errors import CorruptRecord, NewerFormat, StartError, StoreError
from ...file_system import boot_id
from ...staging.bucket_folder import version_of
from ...storage.records.store_records import FORMAT_VERSION
from ...version import __version__

#: name of the record's file or object, next to the databases of the store
RECORD_NAME = "broker.active"
RECORD_FORMAT = 1

ACTIVE, HANDING_OVER, STOPPED = "active", "handing-over", "stopped"
#: maximum duration of a request, including the client's retries
_REQUEST_SECONDS = 5.0


def own_process() -> str:
    """Return the identity of this process."""
    try:
        return f"{_host_namespace()}/{os.getpid()}/{_start_ticks(os.getpid())}"
    except (OSError, IndexError):
        return ""


def has_ended(process: str) -> bool:
    """Return True if this process ran on this host and has certainly ended."""
    try:
        namespace, pid, start_ticks = process.rsplit("/", 2)
        if namespace != _host_namespace():
            return False
    except (OSError, ValueError):
        return False
    try:
        return _start_ticks(int(pid)) != start_ticks
    except FileNotFoundError:
        return True
    except (OSError, ValueError, IndexError):
        return False


def _host_namespace() -> str:
    return f"{boot_id()}/{os.stat('/proc/self/ns/pid').st_ino}"


def _start_ticks(pid: int) -> str:
    """Return the start time of a process; raise FileNotFoundError if it has ended, also for a zombie."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise FileNotFoundError(f"process {pid} has ended")
    return fields[19]


class TakeOverClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Claim of a broker to replace the active broker, which withdraws the claim if it is alive.

    Attributes:
        id: the id of the claiming broker.
        forced: True if the active broker must end, and must not withdraw the claim.
    """

    id: str
    forced: bool = False


class ActiveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of the record. A new field has a default; a change that older brokers must refuse increments ``format``.

    Attributes:
        format: a broker does not take over if the record has a higher format than its own.
        id: a random id of the active process, or of the last active process.
        serial: random, different for each write: some buckets distinguish versions only by their content.
        state: ``active``; ``handing-over``: the successor may become active immediately; ``stopped``: any broker may.
            A broker that crashes leaves ``active``.
        addresses: the addresses of the active broker for clients: HOST:PORT, or the path of a socket.
        tls: True if the HOST:PORT addresses use TLS.
        key: a random secret: the active broker and a standby prove to each other that they can read the store.
        instances: the instances that the broker has opened; a successor opens all of them before it serves.
        lease_seconds: the time that the active broker serves after a read of the record; inf: it never reads it.
        claim: the claim of a broker that lost its connection to the active broker.
        successor: the id of the standby that the broker hands over to.
        process: see :func:`own_process`.
        version: the version of the broker's package.
        store_format: the newest format of the store that the broker reads, and may have written.
        written_at: for people; brokers don't read it.
    """

    format: int = RECORD_FORMAT
    id: str
    serial: str = ""
    state: str = ACTIVE
    addresses: list[str] = []
    tls: bool = False
    key: str = ""
    instances: list[str] = []
    lease_seconds: float = 0.0
    claim: TakeOverClaim | None = None
    successor: str = ""
    process: str = ""
    version: str = __version__
    store_format: int = FORMAT_VERSION
    written_at: str = ""


def encode(record: ActiveRecord) -> bytes:
    """Return the record's bytes: JSON with a line for each field, for people."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def decode(data: bytes) -> ActiveRecord:
    """Read a record; raise NewerFormat if a newer version wrote it, CorruptRecord if it is none."""
    try:
        plain: dict[str, Any] = msgspec.json.decode(data, type=dict)
        for name, supported in (("format", RECORD_FORMAT), ("store_format", FORMAT_VERSION)):
            version = plain.get(name)
            if isinstance(version, int) and version > supported:
                text = (
                    f"the store's active broker is kombu-opendata {plain.get('version')}, whose {name} is {version}; "
                    f"this one knows up to {supported} and can't take over: upgrade it"
                )
                raise NewerFormat(text, version=version, supported=supported)
        return msgspec.convert(plain, ActiveRecord)
    except msgspec.MsgspecError as exc:
        text = f"{RECORD_NAME} in the store does not decode ({exc}): make sure that no broker runs, and delete it"
        raise CorruptRecord(text, key=RECORD_NAME.encode(), offset=0) from exc


class VersionedRecord(NamedTuple):
    """Record, and the version of its object."""

    record: ActiveRecord
    version: dict[str, str]


class RecordChanged(Exception):
    """Another broker wrote the record after it was read."""


class BucketRecord:
    """Record of a store in a bucket.

    Raises:
        StartError: the package ``obstore`` is not installed.
        StoreError: the URL, or a setting of the bucket, is not valid.
    """

    def __init__(self, url: str) -> None:
        try:
            import obstore
        except ImportError as exc:
            text = "a broker on a bucket needs the package obstore: install kombu-opendata[objectstore]"
            raise StartError(text, extra="objectstore") from exc
        read_credential_files()
        self.url, self._obs = url, obstore
        self._changed = (
            obstore.exceptions.AlreadyExistsError,
            obstore.exceptions.PreconditionError,
            obstore.exceptions.NotFoundError,
            FileNotFoundError,
        )
        try:
            self._store = obstore.store.from_url(url)
        except (obstore.exceptions.BaseError, ValueError, TypeError) as exc:
            raise StoreError(f"the store {url} can't be used: {exc}", url=url) from exc

    async def read(self) -> VersionedRecord | None:
        """Return the record, None if there is none; raise StoreError if there is no answer, or as :func:`decode`."""
        try:
            response = await self._ask(self._obs.get_async(self._store, RECORD_NAME))
            return VersionedRecord(decode(bytes(await self._ask(response.bytes_async()))), version_of(response.meta))
        except (FileNotFoundError, self._obs.exceptions.NotFoundError):
            return None

    async def write(self, record: ActiveRecord, replacing: VersionedRecord | None) -> VersionedRecord:
        """Write the record in place of ``replacing``, or as the first record.

        Raise RecordChanged if another broker was first. Raise StoreError if there is no answer; the record may have
        been written.
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
