"""File names and URIs of batches, and URIs of messages in batches. All are relative to the staged folder."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

_SCHEME = "batch:"
_BATCH = r"([0-9a-f]{24}/[0-9]{1,10}-[0-9]{1,10}-[0-9a-f]{16}\.batch)"
_OBJECT = re.compile(_SCHEME + _BATCH, re.ASCII)
_PAYLOAD = re.compile(_SCHEME + _BATCH + r":([0-9]{1,18}):([0-9]{1,10}):([0-9a-f]{8})", re.ASCII)
#: names of files that a sweep of the staged folder may remove: batches, complete or not
FILE_NAME = re.compile(_BATCH + r"(\.part)?", re.ASCII)


def job_folder(job_id: str) -> str:
    """Return the name of a job's folder of batches: a digest, because a job id may be any text."""
    return hashlib.blake2b(job_id.encode(), digest_size=12).hexdigest()


def batch_path(job_id: str, partition: int, attempt: int, token: str) -> str:
    """Return the path of a batch; ``token`` is 16 hexadecimal digits, unique among attempts."""
    return f"{job_folder(job_id)}/{partition}-{attempt}-{token}.batch"


def batch_uri(path: str) -> str:
    """Return the URI of a batch."""
    return _SCHEME + path


def with_token(uri: str, token: str) -> str:
    """Return the URI of a copy of a batch."""
    return f"{uri.rsplit('-', 1)[0]}-{token}.batch"


def parse_batch_uri(uri: str) -> str | None:
    """Return the path of a batch; None if the URI is not one of a batch."""
    match = _OBJECT.fullmatch(uri)
    return match[1] if match else None


class EnvelopePlace(NamedTuple):
    """Location of an envelope in a batch; ``checksum`` is its CRC-32."""

    path: str
    offset: int
    length: int
    checksum: int


def parse_payload_uri(uri: str) -> EnvelopePlace | None:
    """Return the location of a message in a batch; None if the URI is not one of such a message.

    The form is ``batch:<job>/<file>:<offset>:<length>:<CRC-32, 8 hexadecimal digits>``. The URI is relative to the
    staged folder, so a store can be moved.
    """
    match = _PAYLOAD.fullmatch(uri)
    return EnvelopePlace(match[1], int(match[2]), int(match[3]), int(match[4], 16)) if match else None
