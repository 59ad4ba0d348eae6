"""The kinds of records, and the bytes that the keys of each start with; :mod:`.keys` has the table."""

from __future__ import annotations

import enum
import struct

from kombu_opendata.storage.records import types

#: message ids are below this
MAX_MESSAGE_ID = 0x6F << 56
#: messages that are not stored have ids from here on, which no stored one gets
FIRST_TRANSIENT_ID = 1 << 62
SESSION_BYTES = 16
#: of a binding's arguments
DIGEST_BYTES = 8
#: of an idempotency key and where it was used
HASH_BYTES = 16

U8 = struct.Struct(">B")  # space of a history index
U16 = struct.Struct(">H")  # page of a run
U32 = struct.Struct(">I")  # chunk number
U64 = struct.Struct(">Q")  # message id or bucket


class RecordKind(enum.Enum):
    """What a record is, as its key tells."""

    PAYLOAD = "payload"
    METADATA = "metadata"
    SEQ_BLOCK = "sequence block"
    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    ATTEMPTS = "attempts"
    CONFIG = "config"
    STORE_HEADER = "store header"
    EXCHANGE = "exchange"
    BINDING = "binding"
    OPTIONS = "options"
    PRODUCER = "producer"
    LEASES = "leases"
    CHUNK = "chunk"
    ROUTES_BLOCK = "routes block"
    JOURNAL_POSITION = "journal position"
    RESULT = "result"
    RESULT_EXPIRY = "result expiry"
    CHORD = "chord"
    CHORD_PART = "chord part"
    DEAD_LETTER = "dead letter"
    CURSOR = "routing cursor"
    IDEMPOTENCY = "idempotency"
    STAGED_JOB = "staged job"
    STAGED_OBJECT = "staged object"
    STAGED_EXPIRY = "staged job expiry"
    HISTORY_LOG = "history log"
    HISTORY_POSTINGS = "history postings"
    HISTORY_SEGMENT = "history segment"
    HISTORY_TRAIL = "history trail"
    HISTORY_PAGE = "history page"
    HISTORY_HEAD = "history head"
    HISTORY_HEADERS = "history headers"
    NEWEST_TIME = "newest time"
    QUEUE_COUNTS = "queue counts"
    ARCHIVED_FAILED = "archived failed"
    REMOVAL = "removal"
    LOG_RETENTION = "log retention"
    LARGE_VALUE = "large value"
    VALUE_CHUNK = "value chunk"


#: of a key that is the same for all stores, the whole key
PREFIXES = {
    RecordKind.PAYLOAD: b"\x01\x01",
    RecordKind.METADATA: b"\x01\x01" + types.terminated(b"opendata-queue/messages/metadata"),
    RecordKind.SEQ_BLOCK: b"\x01\x02",
    RecordKind.ACTIVE: b"\x01\x02",
    RecordKind.DONE: b"\x01\x03",
    RecordKind.FAILED: b"\x01\x04",
    RecordKind.ATTEMPTS: b"\x01\x05",
    RecordKind.CONFIG: b"\x01\x06",
    RecordKind.STORE_HEADER: b"\x01\x10",
    RecordKind.EXCHANGE: b"\x01\x11",
    RecordKind.BINDING: b"\x01\x12",
    RecordKind.OPTIONS: b"\x01\x13",
    RecordKind.PRODUCER: b"\x01\x14",
    RecordKind.LEASES: b"\x01\x15",
    RecordKind.CHUNK: b"\x01\x16",
    RecordKind.ROUTES_BLOCK: b"\x01\x29",
    RecordKind.JOURNAL_POSITION: b"\x01\x18",
    RecordKind.RESULT: b"\x01\x19",
    RecordKind.RESULT_EXPIRY: b"\x01\x1a",
    RecordKind.CHORD: b"\x01\x1e",
    RecordKind.CHORD_PART: b"\x01\x1f",
    RecordKind.DEAD_LETTER: b"\x01\x1b",
    RecordKind.CURSOR: b"\x01\x1c",
    RecordKind.IDEMPOTENCY: b"\x01\x1d",
    RecordKind.STAGED_JOB: b"\x01\x26",
    RecordKind.STAGED_OBJECT: b"\x01\x27",
    RecordKind.STAGED_EXPIRY: b"\x01\x28",
    RecordKind.HISTORY_LOG: b"\x01\x20",
    RecordKind.HISTORY_POSTINGS: b"\x01\x21",
    RecordKind.HISTORY_SEGMENT: b"\x01\x22",
    RecordKind.HISTORY_TRAIL: b"\x01\x23",
    RecordKind.HISTORY_PAGE: b"\x01\x24",
    RecordKind.HISTORY_HEAD: b"\x01\x25",
    RecordKind.HISTORY_HEADERS: b"\x01\x2a",
    RecordKind.NEWEST_TIME: b"\x01\x2b",
    RecordKind.QUEUE_COUNTS: b"\x01\x2c",
    RecordKind.ARCHIVED_FAILED: b"\x01\x2d",
    RecordKind.REMOVAL: b"\x01\x2e",
    RecordKind.LOG_RETENTION: b"\x01\x2f",
    RecordKind.LARGE_VALUE: b"\x01\x30",
    RecordKind.VALUE_CHUNK: b"\x01\x31",
}
