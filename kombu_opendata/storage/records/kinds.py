"""The kinds of records, and the prefix of the keys of each kind (see docs/rfcs/0001-records.md)."""

from __future__ import annotations

import enum
import struct
from typing import Self

from . import types

#: message ids are below this
MAX_MESSAGE_ID = 0x6F << 56
#: the first id of messages that are not stored; no stored message has such an id
FIRST_TRANSIENT_ID = 1 << 62
SESSION_BYTES = 16
#: size of the digest of a binding's arguments
DIGEST_BYTES = 8
#: size of the hash of an idempotency key and its destination
HASH_BYTES = 16

U8 = struct.Struct(">B")  # space of a history index
U16 = struct.Struct(">H")  # page of a run
U32 = struct.Struct(">I")  # chunk number
U64 = struct.Struct(">Q")  # message id or bucket


class RecordKind(enum.Enum):
    """A kind of record: its name, and the prefix of its keys (or the whole key)."""

    prefix: bytes

    def __new__(cls, name: str, prefix: bytes) -> Self:
        kind = object.__new__(cls)
        kind._value_, kind.prefix = name, prefix
        return kind

    PAYLOAD = "payload", b"\x01\x01"
    METADATA = "metadata", b"\x01\x01" + types.terminated(b"opendata-queue/messages/metadata")
    SEQ_BLOCK = "sequence block", b"\x01\x02"
    ACTIVE = "active", b"\x01\x02"
    DONE = "done", b"\x01\x03"
    FAILED = "failed", b"\x01\x04"
    ATTEMPTS = "attempts", b"\x01\x05"
    CONFIG = "config", b"\x01\x06"
    STORE_HEADER = "store header", b"\x01\x10"
    EXCHANGE = "exchange", b"\x01\x11"
    BINDING = "binding", b"\x01\x12"
    OPTIONS = "options", b"\x01\x13"
    PRODUCER = "producer", b"\x01\x14"
    LEASES = "leases", b"\x01\x15"
    CHUNK = "chunk", b"\x01\x16"
    ROUTES_BLOCK = "routes block", b"\x01\x29"
    JOURNAL_POSITION = "journal position", b"\x01\x18"
    RESULT = "result", b"\x01\x19"
    RESULT_EXPIRY = "result expiry", b"\x01\x1a"
    CHORD = "chord", b"\x01\x1e"
    CHORD_PART = "chord part", b"\x01\x1f"
    DEAD_LETTER = "dead letter", b"\x01\x1b"
    CURSOR = "routing cursor", b"\x01\x1c"
    IDEMPOTENCY = "idempotency", b"\x01\x1d"
    STAGED_JOB = "staged job", b"\x01\x26"
    STAGED_OBJECT = "staged object", b"\x01\x27"
    STAGED_EXPIRY = "staged job expiry", b"\x01\x28"
    HISTORY_LOG = "history log", b"\x01\x20"
    HISTORY_POSTINGS = "history postings", b"\x01\x21"
    HISTORY_SEGMENT = "history segment", b"\x01\x22"
    HISTORY_TRAIL = "history trail", b"\x01\x23"
    HISTORY_PAGE = "history page", b"\x01\x24"
    HISTORY_HEAD = "history head", b"\x01\x25"
    HISTORY_HEADERS = "history headers", b"\x01\x2a"
    NEWEST_TIME = "newest time", b"\x01\x2b"
    QUEUE_COUNTS = "queue counts", b"\x01\x2c"
    ARCHIVED_FAILED = "archived failed", b"\x01\x2d"
    REMOVAL = "removal", b"\x01\x2e"
    LOG_RETENTION = "log retention", b"\x01\x2f"
    LARGE_VALUE = "large value", b"\x01\x30"
    VALUE_CHUNK = "value chunk", b"\x01\x31"
    RUNNING_TASKS = "running tasks", b"\x01\x32"
    TASK_FAILURE = "task failure", b"\x01\x33"
    HANDLED_FAILURES = "handled failures", b"\x01\x34"
    OVERRIDES = "overrides", b"\x01\x35"
