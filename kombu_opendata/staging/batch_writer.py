"""Writer of a batch: one attempt of one partition of a job, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NoReturn, Self
from zlib import crc32

from msgspec import structs

from ..errors import InvalidMessage, MessageTooLarge, RequestError
from . import batch_format as fmt
from .batch_block import BLOCK_BYTES, BLOCK_ROWS, PendingRows, encode_block, value_at
from .batch_format import SegmentEntry, batch_path, batch_uri
from .batch_reader import read_inline
from .compression import Compressor
from .folder import Folder, Output
from .folder_url import open_folder
from .job import MAX_PART, BatchInfo, StagingTarget, check_job_id

Headers = Mapping[str, "str | Sequence[str | None]"]

_DEFAULTS = {
    "exchange": "", "routing_key": "", "priority": 0, "created_at_ms": 0, "visible_at_ms": 0, "ttl_ms": -1,
}  # fmt: skip


class BatchWriter:
    """Writer for the batch of one attempt, in one thread. Its block must :meth:`close` it; an error in it aborts it.

    Args:
        target: the target that the broker returned.
        job_id: the id of the job, up to 255 bytes of UTF-8.
        partition, attempt: the numbers of the partition and of its attempt, from 0 to 2³²-1.
        token: 16 hexadecimal digits, unique among the batches of the job; random by default.
        max_segment_bytes: approximate; the writer has a segment's index and one frame in memory.

    Raises:
        RequestError: an invalid job id, partition or attempt.
    """

    def __init__(
        self,
        target: StagingTarget,
        job_id: str,
        partition: int,
        attempt: int,
        *,
        token: str | None = None,
        max_segment_bytes: int = fmt.SEGMENT_BYTES,
    ) -> None:
        check_job_id(job_id)
        for name, value in (("partition", partition), ("attempt", attempt)):
            if not 0 <= value <= MAX_PART:
                raise RequestError(f"{name} {value} is not within 0 and {MAX_PART}", value=value)
        self._target, self._job_id = target, job_id
        self._partition, self._attempt = partition, attempt
        self._path = batch_path(job_id, partition, attempt, token or fmt.random_token())
        self._limit, self._max_segment_bytes = target.max_message_bytes, max_segment_bytes
        self._envelopes: list[bytes] = []
        self._fields: list[tuple[Mapping[str, str | None], dict[str, Any]]] = []
        self._pending_bytes = 0
        self._segments: list[SegmentEntry] = []
        self._index: list[bytes] = []  # blocks of the current segment, each preceded by its size
        self._index_bytes = self._segment_bytes = self._segment_rows = 0
        self._written_rows = self._contents_bytes = 0
        self._compressor = Compressor()
        self._inline_parts: list[bytes] = [fmt.HEADER_BYTES]  # not written as long as the batch may be inline
        self._size = self._segment_start = len(fmt.HEADER_BYTES)
        self._output: Output | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        if kind is not None:
            self.abort()

    @property
    def rows(self) -> int:
        return self._written_rows + len(self._envelopes)

    # ------------------------------------------------------------------ adding
    def add(self, envelope: bytes, headers: Mapping[str, str | None], **fields: Any) -> None:
        """Add one message.

        Args:
            envelope: the envelope for the consumer (:mod:`kombu_opendata.protocol.envelope`).
            headers: the metadata headers as texts; the mapping is neither modified nor retained.
            fields: ``exchange``, ``routing_key``, ``priority`` (Kombu's, 0 to 255, higher first), ``created_at_ms`` (0
                means the time of the commit), ``visible_at_ms`` (0 means immediately), and ``ttl_ms``, which counts
                from the commit (-1 means no TTL).

        Raises:
            MessageTooLarge: the envelope exceeds the broker's limit. The row was not added.
            InvalidMessage: this row, or one of the 255 before it, is invalid; ``row`` counts from 0.
            StoreError, StoreFull: the batch can't be written.
        """
        size = len(envelope)
        if size > self._limit:
            self._too_large(size, self.rows)
        if self._pending_bytes + size > fmt.FRAME_BYTES:
            self._flush()
        self._envelopes.append(envelope)
        self._fields.append((headers, {**_DEFAULTS, **fields}))
        self._pending_bytes += size
        if len(self._envelopes) >= BLOCK_ROWS:
            self._flush()

    def add_many(self, envelopes: Sequence[bytes], headers: Headers, **fields: Any) -> None:
        """Add many messages, as :meth:`add` does. A field is one value for all, or a sequence of as many values.

        Raises:
            RequestError: a column has another number of values than there are envelopes.
        """
        self._check_open()
        rows = PendingRows(envelopes, headers, {**_DEFAULTS, **fields})
        count = len(envelopes)
        for name, column in chain(rows.fields.items(), headers.items()):
            if not isinstance(column, (str, int)) and len(column) != count:
                raise RequestError(f"column {name!r} has {len(column)} values for {count} messages", name=name)
        self._flush()
        start = 0
        while start < count:
            end = self._block_end(envelopes, start)
            self._add_block(rows.part(start, end))
            start = end

    def _block_end(self, envelopes: Sequence[bytes], start: int) -> int:
        size = 0
        end = min(start + BLOCK_ROWS, len(envelopes))
        for position in range(start, end):
            length = len(envelopes[position])
            if length > self._limit:
                self._too_large(length, self.rows + position - start)
            size += length
            if size > fmt.FRAME_BYTES and position > start:
                return position
        return end

    def _too_large(self, size: int, row: int) -> NoReturn:
        text = (
            f"row {row} of partition {self._partition}: the message has {size} bytes and the broker's limit is "
            f"{self._limit}: store large data elsewhere and send a reference, or raise the broker's maximum"
        )
        raise MessageTooLarge(text, size=size, limit=self._limit, row=row, partition=self._partition)

    # ------------------------------------------------------------------ blocks and segments
    def _flush(self) -> None:
        """Encode a block of the rows that were added one by one."""
        self._check_open()
        if not self._envelopes:
            return
        maps, fields = zip(*self._fields, strict=True)
        names = dict.fromkeys(chain.from_iterable(maps))
        headers = {name: [each.get(name) for each in maps] for name in names}
        rows = PendingRows(self._envelopes, headers, {name: [each[name] for each in fields] for name in _DEFAULTS})
        self._envelopes = []
        self._fields = []
        self._pending_bytes = 0
        self._add_block(rows)

    def _add_block(self, rows: PendingRows) -> None:
        block = rows.block(self._invalid)
        payload = b"".join(rows.envelopes)
        frame = self._compressor.frame(payload)
        block = structs.replace(block, offset=self._segment_bytes, frame_bytes=len(frame), frame_checksum=crc32(frame))
        encoded = encode_block(block)
        if len(encoded) > BLOCK_BYTES and block.rows > 1:
            middle = block.rows // 2
            self._add_block(rows.part(0, middle))
            self._add_block(rows.part(middle, block.rows))
            return
        self._contents_bytes += len(payload) + fmt.SIZE.size + len(encoded)
        self._written_rows += block.rows
        self._write(frame)
        self._index += (fmt.SIZE.pack(len(encoded)), encoded)
        self._index_bytes += fmt.SIZE.size + len(encoded)
        self._segment_bytes += len(frame)
        self._segment_rows += block.rows
        largest = max(self._segment_bytes, self._index_bytes)
        if largest >= self._max_segment_bytes or self._segment_rows >= fmt.SEGMENT_ROWS:
            self._end_segment()

    def _invalid(self, row: int, name: str, problem: str) -> NoReturn:
        place = self._written_rows + row
        text = f"row {place} of partition {self._partition}: {problem}"
        raise InvalidMessage(text, row=place, partition=self._partition, name=name)

    def _end_segment(self) -> None:
        if not self._segment_rows:
            return
        index = self._compressor.frame(b"".join(self._index))
        self._write(index)
        blocks = len(self._index) // 2
        self._segments.append(
            SegmentEntry(self._segment_start, self._segment_bytes, len(index), crc32(index), self._segment_rows, blocks)
        )
        self._segment_start = self._size
        self._index = []
        self._index_bytes = self._segment_bytes = self._segment_rows = 0

    # ------------------------------------------------------------------ the object
    def _write(self, data: bytes) -> None:
        self._size += len(data)
        if self._output is not None:
            self._output.write(data)
            return
        self._inline_parts.append(data)
        if self._contents_bytes > self._target.inline_bytes or self._written_rows > self._target.inline_rows:
            self._output = open_folder(self._target.url, self._target.options).create(self._path)
            parts, self._inline_parts = self._inline_parts, []
            for part in parts:
                self._output.write(part)

    def close(self) -> BatchInfo:
        """Make the batch durable; return its description for the commit.

        Raises:
            InvalidMessage: one of the last rows is invalid.
            StoreError, StoreFull: the batch can't be written. Call :meth:`abort`.
        """
        self._flush()
        self._end_segment()
        if not self._written_rows:
            self.abort()
            return BatchInfo("", 0, 0, 0, self._partition, self._attempt)
        tail, checksum = fmt.encode_tail(
            self._segments, self._target.instance, self._job_id, self._partition, self._attempt, self._size
        )
        self._write(tail)
        data = b"".join(self._inline_parts)
        if self._output is not None:
            self._output.commit()
        self._is_closed = True
        uri, rows = batch_uri(self._path), self._written_rows
        return BatchInfo(uri, rows, self._size, checksum, self._partition, self._attempt, data, self._contents_bytes)

    def abort(self) -> None:
        """Discard the added messages and remove the written bytes. Does nothing after :meth:`close`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._inline_parts.clear()
        if self._output is not None:
            self._output.abort()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RequestError("the batch was closed or aborted: a new attempt needs a new writer")


def write_object(folder: Folder, info: BatchInfo) -> BatchInfo:
    """Write an inline batch as an object; return its description without the bytes."""
    folder.write(info.uri.removeprefix("batch:"), [info.data])
    return replace(info, data=b"")


def merge_inline(infos: Sequence[BatchInfo], target: StagingTarget, job_id: str) -> BatchInfo:
    """Write inline batches as one object, with their messages in the same order; return its description.

    A job of thousands of small partitions is one object then, instead of thousands. The object has the name of the
    first batch, so a repeated call replaces it.
    """
    first = infos[0]
    token = first.uri.rpartition("-")[2].removesuffix(".batch")
    objects = replace(target, inline_bytes=0, inline_rows=0)
    with BatchWriter(objects, job_id, first.partition, first.attempt, token=token) as writer:
        for info in infos:
            for _encoded, block, payload in read_inline(info, target.instance, job_id, target.max_message_bytes):
                at = 0
                for row, length in enumerate(block.lengths):
                    fields = {name: value_at(getattr(block, name), row) for name in _DEFAULTS}
                    writer.add(payload[at : at + length], block.headers_of(row), **fields)
                    at += length
        return writer.close()
