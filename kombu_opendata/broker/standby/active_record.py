"""The active record: the identity and addresses of a store's active broker. JSON, see RFC 0009."""

from __future__ import annotations

from typing import Any

import msgspec

from ...errors import CorruptRecord, NewerFormat
from ...storage.records.header import FORMAT_VERSION
from ...version import __version__

#: the name of the record's file or object, beside the databases of the store
RECORD_NAME = "broker.active"
RECORD_FORMAT = 1

ACTIVE, HANDING_OVER, STOPPED = "active", "handing-over", "stopped"


class TakeOverClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's claim to replace the active one, which withdraws the claim if it is alive.

    Attributes:
        id: the id of the claiming broker.
        forced: the active broker may not withdraw it, and ends.
    """

    id: str
    forced: bool = False


class ActiveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record's fields. New fields get a default; a change that an older broker must not miss raises ``format``.

    Attributes:
        id: random, of the process that is active, or was.
        serial: random, different for each write: some buckets distinguish versions only by their content.
        state: ``active``; ``handing-over``: the successor may become active immediately; ``stopped``: any broker may.
        addresses: where clients reach it: HOST:PORT, or the path of a socket.
        tls: the HOST:PORT addresses use TLS.
        key: random, readable with the store: the active broker and a standby prove that they can read it.
        instances: the instances that it has opened; a successor opens all of them before it serves.
        lease_seconds: how long the active broker serves without reading the record; inf: it never reads it.
        claim: the claim of a broker that lost its connection to the active one.
        successor: the id of the standby that a broker hands over to.
        process: the process on its host, see :mod:`.process_identity`.
        version: the version of its package.
        store_format: the newest format of the store that it reads, and may have written.
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
    """Read a record.

    Raises:
        NewerFormat: a newer version of this package wrote it, so it may have written the store, too.
        CorruptRecord: the bytes are not a record.
    """
    try:
        plain: dict[str, Any] = msgspec.json.decode(data, type=dict)
        for name, supported in (("format", RECORD_FORMAT), ("store_format", FORMAT_VERSION)):
            version = plain.get(name)
            if isinstance(version, int) and version > supported:
                raise NewerFormat(
                    f"the store's active broker is kombu-opendata {plain.get('version')}, whose {name} is {version}; "
                    f"this one knows up to {supported} and can't take over: upgrade it",
                    version=version,
                    supported=supported,
                )
        return msgspec.convert(plain, ActiveRecord)
    except msgspec.MsgspecError as exc:
        raise CorruptRecord(
            f"{RECORD_NAME} in the store does not decode ({exc}): make sure that no broker runs, and delete it",
            key=RECORD_NAME.encode(),
            offset=0,
        ) from exc
