"""The target of a job's executors and their batches: plain, picklable values.

:mod:`kombu_opendata.protocol.messages.staging_messages` has the state of a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import RequestError
from ..protocol.envelope import DEFAULT_MAX_MESSAGE_BYTES

MAX_JOB_ID_BYTES = 255
MAX_PART = 0xFFFF_FFFF
#: limits for the contents of a job's batches that are inline: contained in the commit, without an object
INLINE_BYTES = 128 << 10
INLINE_ROWS = 500

_Bytes = bytes  # ``bytes`` is also the name of a field


@dataclass(frozen=True)
class StagingTarget:
    """Target for the executors of a job, as returned by the broker."""

    url: str  # the folder of staged batches: ``file:///…`` or ``s3://bucket/…``, ``gs:``, ``az:``
    instance: str = "default"  # the broker's instance; each batch contains its name
    #: the settings of the object store that are not secret (``endpoint``, ``region``, …). Credentials come from the
    #: executor's environment.
    options: dict[str, str] = field(default_factory=dict)
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES  # the limit for one envelope
    #: a batch within these two limits is a part of the commit instead of an object
    inline_bytes: int = INLINE_BYTES
    inline_rows: int = INLINE_ROWS


@dataclass(frozen=True)
class BatchInfo:
    """Description of a written batch for the commit."""

    uri: str  # ``batch:<job>/<file>``, relative to the staged folder; empty if the batch has no rows
    rows: int  # number of messages
    bytes: int  # size of the object
    checksum: int  # a CRC-32 over the checksums of all parts
    partition: int = 0  # of the writer
    attempt: int = 0  # of the writer
    #: the object itself if it is small and was not written; otherwise empty
    data: _Bytes = field(default=b"", repr=False)
    contents_bytes: int = 0  # of messages and index before compression


def check_job_id(job_id: str) -> None:
    """Validate a job id; raise RequestError if it is empty, over 255 bytes, or not valid Unicode."""
    try:
        size = len(job_id) if len(job_id) > MAX_JOB_ID_BYTES else len(job_id.encode())
    except UnicodeEncodeError as exc:
        raise RequestError(f"the job id is not valid Unicode: {exc.reason}") from exc
    if not 0 < size <= MAX_JOB_ID_BYTES:
        text = f"a job id has 1 to {MAX_JOB_ID_BYTES} bytes, not {size}: use e.g. a UUID, or a table's name and a date"
        raise RequestError(text, size=size, limit=MAX_JOB_ID_BYTES)
