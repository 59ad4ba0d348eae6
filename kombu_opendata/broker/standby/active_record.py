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


class ActiveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record's fields. New ones get a default; a change that an older broker must not miss raises ``format``.

    Attributes:
        id: random, of the process that is active, or was.
        state: ``active``, ``handing-over`` (to the successor, who may go on at once) or ``stopped``.
        addresses: where clients reach it: HOST:PORT, or the path of a socket.
        version: of its package.
        store_format: the newest format of the store that it reads, and may have written.
    """

    format: int = RECORD_FORMAT
    id: str
    state: str = ACTIVE
    addresses: list[str] = []
    version: str = __version__
    store_format: int = FORMAT_VERSION


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
