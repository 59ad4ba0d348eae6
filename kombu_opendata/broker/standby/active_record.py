"""The active record: which broker of a store is active, and where its clients find it. JSON, see RFC 0009."""

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
    """A broker's wish to replace the active one, which withdraws the claim if it is alive.

    Attributes:
        id: of the broker that claims.
        forced: the active broker may not withdraw it, and ends.
    """

    id: str
    forced: bool = False


class ActiveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record's fields. New ones get a default; a change that an older broker must not miss raises ``format``.

    Attributes:
        id: random, of the process that is active, or was.
        serial: random, another one for each write: some buckets tell versions apart only by their content.
        state: ``active``; ``handing-over``: the successor may go on at once; ``stopped``: everybody may.
        addresses: where clients reach it: HOST:PORT, or the path of a socket.
        tls: whether the HOST:PORT addresses use TLS.
        key: random, known to those that can read the store: the active broker and a standby prove that they can.
        instances: those that it has opened, all of which a successor opens before it serves.
        lease_seconds: how long the active broker goes on without reading the record; inf: it never looks.
        claim: of a broker that has not heard from the active one.
        successor: the id of the standby that a broker hands over to.
        process: the process on its host, see :mod:`.process_identity`.
        version: of its package.
        store_format: the newest format of the store that it reads, and may have written.
        written_at: for people; no broker reads it.
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
    """The record's bytes: JSON with a line for each field, for people."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def decode(data: bytes) -> ActiveRecord:
    """Read a record.

    Raises:
        NewerFormat: a newer version of this package wrote it, so it may have written the store, too.
        CorruptRecord: it is no record.
    """
    try:
        plain: dict[str, Any] = msgspec.json.decode(data, type=dict)
        for name, ours in (("format", RECORD_FORMAT), ("store_format", FORMAT_VERSION)):
            theirs = plain.get(name)
            if isinstance(theirs, int) and theirs > ours:
                raise NewerFormat(
                    f"the store's active broker is kombu-opendata {plain.get('version')}, whose {name} is {theirs}; "
                    f"this one knows up to {ours} and can't take over: upgrade it",
                    version=theirs,
                    supported=ours,
                )
        return msgspec.convert(plain, ActiveRecord)
    except msgspec.MsgspecError as exc:
        raise CorruptRecord(
            f"{RECORD_NAME} in the store does not decode ({exc}): make sure that no broker runs, and delete it",
            key=RECORD_NAME.encode(),
            offset=0,
        ) from exc
