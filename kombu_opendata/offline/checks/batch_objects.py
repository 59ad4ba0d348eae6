"""Check of a whole batch object: every byte of it, where a commit reads its directory only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...errors import DamagedBatch, NewerFormat
from ...staging import batch_format as fmt
from ...staging.batch_block import IndexBlock, decode_block
from ...staging.batch_reader import BatchSource, contents_of, read_index, read_tail
from ...staging.folder_url import StagedFolder
from ...storage.records.staged_jobs import StagedObject

#: a writer ends a segment with the envelope after which it is large
_MAX_PAYLOAD_BYTES = fmt.SEGMENT_BYTES + fmt.MAX_ENVELOPE_BYTES


def check_object(staged: StagedFolder, first_id: int, batch: StagedObject) -> tuple[str, str]:
    """Read a whole object; return the code and the text of a finding, or empty texts.

    Raises:
        StoreError: the object can't be read now.
    """
    folder = staged.open()
    try:
        size = folder.size(batch.path)
    except DamagedBatch as exc:
        return "batch-missing", exc.text
    if size != batch.bytes:
        return "batch-damaged", f"it has {size} bytes instead of {batch.bytes}"
    first, rows = None, 0
    try:
        for damaged in verify_object(folder, batch.path, size, batch.checksum):
            first, rows = first or damaged, rows + damaged.rows
    except (DamagedBatch, NewerFormat) as exc:
        return "batch-damaged", exc.text
    if first is None:
        return "", ""
    return "batch-damaged", f"{rows} of {batch.rows} messages from {first_id + first.first} on: {first.error.text}"


class DamagedRows(NamedTuple):
    """Rows of an object that can't be read, from row ``first`` of the object on."""

    first: int
    rows: int
    error: DamagedBatch


def verify_object(folder: BatchSource, path: str, size: int, checksum: int) -> Iterator[DamagedRows]:
    """Read every byte of an object of ``size`` bytes, and yield its damaged rows.

    ``checksum`` is the one in the commit. The memory use is a segment. Errors are those of :func:`read_tail`.
    """
    tail = read_tail(folder, path, size)
    if tail.checksum != checksum:
        raise fmt.corrupt(path, size - 8, f"its checksum is {tail.checksum}, the commit has {checksum}")
    first = 0
    for segment in tail.segments:
        row, at, offset = 0, 0, segment.payload_offset
        try:
            if segment.payload_bytes > _MAX_PAYLOAD_BYTES:
                raise fmt.corrupt(path, offset, f"a segment of {segment.payload_bytes} bytes")
            (payload,) = folder.read(path, [(offset, segment.payload_bytes)])
            for encoded in read_index(folder, path, segment, tail.version):
                block = decode_block(encoded, path, segment.payload_bytes, fmt.MAX_ENVELOPE_BYTES)
                if at != block.offset:
                    raise fmt.corrupt(path, offset + at, "a block that does not continue the one before")
                at += block.frame_bytes or sum(block.lengths)
                yield from _damaged_rows(payload[block.offset : at], block, path, offset, first + row)
                row += block.rows
            if at != segment.payload_bytes or row != segment.rows:
                text = f"the blocks of a segment have {row} of its {segment.rows} rows and end at its byte {at}"
                raise fmt.corrupt(path, offset + at, text)
        except DamagedBatch as exc:
            yield DamagedRows(first + row, max(segment.rows - row, 1), exc)
        first += segment.rows


def _damaged_rows(stored: bytes, block: IndexBlock, path: str, offset: int, first: int) -> Iterator[DamagedRows]:
    """Yield the damaged rows of a block with these stored bytes, which begins with row ``first`` of the object."""
    at = offset + block.offset
    try:
        envelopes = contents_of(stored, block, path, at) if block.frame_bytes else stored
    except DamagedBatch as exc:
        yield DamagedRows(first, block.rows, exc)
        return
    for row in block.damaged_rows(envelopes):
        text = f"the checksum of the envelope of row {first + row} does not match"
        yield DamagedRows(first + row, 1, fmt.corrupt(path, at, text))
