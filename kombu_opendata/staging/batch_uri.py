"""File names and URIs of batches, and URIs of messages in batches. All are relative to the staged folder."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

_SCHEME = "batch:"
_BATCH = r"([0-9a-f]{24}/[0-9]{1,10}-[0-9]{1,10}-[0-9a-f]{16}\.batch)"
_OBJECT = re.compile(_SCHEME + _BATCH, re.ASCII)
_PAYLOAD = re.compile(_SCHEME + _BATCH + r":([0-9]{1,18}):([0-9]{1,10}):([0-9a-f]{8})", re.ASCII)
#: names of files that a sweep of the staged folder may remove: batches, finished or not
FILE_NAME = re.compile(_BATCH + r"(\.part)?", re.ASCII)


def job_folder(job_id: str) -> str:
    """The name of a job's folder of batches: a digest, because a job id may be any text."""
    return hashlib.blake2b(job_id.encode(), digest_size=12).hexdigest()


def batch_path(job_id: str, partition: int, attempt: int, token: str) -> str:
    """The path of a batch; ``token`` is 16 hexadecimal digits that no other attempt has."""
    return f"{job_folder(job_id)}/{partition}-{attempt}-{token}.batch"


def batch_uri(path: str) -> str:
    """The URI of a batch."""
    return _SCHEME + path


def with_token(uri: str, token: str) -> str:
    """The URI of a copy of a batch."""
    return f"{uri.rsplit('-', 1)[0]}-{token}.batch"


def parse_batch_uri(uri: str) -> str | None:
    """The path of a batch; None if the URI is not one of a batch."""
    found = _OBJECT.fullmatch(uri)
    return found[1] if found else None


class EnvelopePlace(NamedTuple):
    """Where an envelope is in a batch; ``checksum`` is its CRC-32."""

    path: str
    offset: int
    length: int
    checksum: int


def parse_payload_uri(uri: str) -> EnvelopePlace | None:
    """The place of a message in a batch; None if the URI is not one of such a message.

    The form is ``batch:<job>/<file>:<offset>:<length>:<CRC-32, 8 hexadecimal digits>``. As it is relative to the staged
    folder, a store can be moved.
    """
    found = _PAYLOAD.fullmatch(uri)
    return EnvelopePlace(found[1], int(found[2]), int(found[3]), int(found[4], 16)) if found else None
