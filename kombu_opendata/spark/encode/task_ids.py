"""Task ids that are derived from job, partition and row, so that a repeated partition has the same ids.

=====  ============================================================================================
digit  of an id ``xxxxxxxx-xxxx-5xxx-8xxx-rrrrrrrrrrrr``
=====  ============================================================================================
x      of the SHA-1 of a fixed namespace, the partition's number and the job id, as in a UUID of version 5
r      the row's number in its partition, from 0; 48 bits
=====  ============================================================================================

The ids of a partition are therefore all different. Ids of two partitions can be equal only if 74 bits of the digests
are.
"""

from __future__ import annotations

import hashlib
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ROW_BYTES = 6
#: an arbitrary fixed value
_NAMESPACE = uuid.UUID("9f1a6f0e-6c0b-5b52-8c8f-0f3c53a1d7c4")


def partition_prefix(job_id: str, partition: int) -> str:
    """Return the first 24 characters of every id of a partition."""
    digest = hashlib.sha1(_NAMESPACE.bytes + partition.to_bytes(8, "big") + job_id.encode()).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-"


def task_id(job_id: str, partition: int, row: int) -> str:
    """Return the id of a row's task."""
    return f"{partition_prefix(job_id, partition)}{row:012x}"


def row_ids(prefix: str, first: int, rows: int) -> pa.Array:
    """Return the ids of consecutive rows of a partition, as a column of texts."""
    numbers = np.arange(first, first + rows, dtype=">u8").view(np.uint8).reshape(-1, 8)
    digits = numbers[:, 8 - ROW_BYTES :].tobytes().hex().encode()
    offsets = pa.array(np.arange(0, len(digits) + 1, 2 * ROW_BYTES, dtype=np.int32))
    column = pa.StringArray.from_buffers(rows, offsets.buffers()[1], pa.py_buffer(digits))
    return pc.binary_join_element_wise(prefix, column, "")
