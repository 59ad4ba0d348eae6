"""Writes a batch: one attempt of one partition of a job, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any
from zlib import crc32

from ..errors import InvalidMessage, MessageTooLarge, RequestError
from . import batch_format as fmt
from .batch_format import Block, Segment
from .batch_uri import batch_path, batch_uri
from .folder import Folder, Output
from .folder_url import open_folder
from .job import MAX_PART, BatchInfo, StagingTarget, check_job_id

_SURELY_FITS = fmt.MAX_TEXT_BYTES // 4
_MAX_MS = 1 << 53
_NUMBERS = {
    "priority": (0, 255),
    "created_at_ms": (-1, _MAX_MS),
    "visible_at_ms": (-1, _MAX_MS),
    "ttl_ms": (-1, _MAX_MS),
}

Headers = Mapping[str, "str | Sequence[str | None]"]


class BatchWriter:
    """The batch of one attempt. Use it in one thread; end it with :meth:`close` or :meth:`abort`.

    Args:
        target: where to write, from the broker.
        job_id: of the job, up to 255 bytes of UTF-8.
        partition, attempt: which part of the job this is, and which try; any numbers from 0 to 2³²-1.
        token: 16 hexadecimal digits that no other batch of the job has; random when not given.

    Raises:
        RequestError: a job id, partition or attempt that can't be.
    """

    def __init__(
        self, target: StagingTarget, job_id: str, partition: int, attempt: int, *, token: str | None = None
    ) -> None:
        check_job_id(job_id)
        for name, value in (("partition", partition), ("attempt", attempt)):
            if not 0 <= value <= MAX_PART:
                raise RequestError(f"{name} {value} is not within 0 and {MAX_PART}", value=value)
        self._target = target
        self._job_id = job_id
        self._partition, self._attempt = partition, attempt
        self._path = batch_path(job_id, partition, attempt, token or os.urandom(8).hex())
        self._limit = target.max_message_bytes
        self._envelopes: list[bytes] = []
        self._fields: list[tuple[Mapping[str, str | None], str, str, int, int, int, int]] = []
        self._pending_bytes = 0
        self._segments: list[Segment] = []
        self._index: list[bytes] = []  # of the segment under way, with sizes
        self._index_bytes = self._segment_bytes = self._segment_rows = 0
        self._written_rows = 0
        self._held: list[bytes] = [fmt.HEADER_BYTES]  # what is written when it is known that it does not go inline
        self._size = self._segment_start = len(fmt.HEADER_BYTES)
        self._folder: Folder | None = None
        self._output: Output | None = None
        self._ended = False

    @property
    def rows(self) -> int:
        """Messages that were added."""
        return self._written_rows + len(self._envelopes)

    # ------------------------------------------------------------------ adding
    def add(
        self,
        envelope: bytes,
        headers: Mapping[str, str | None],
        *,
        exchange: str = "",
        routing_key: str = "",
        priority: int = 0,
        created_at_ms: int = 0,
        visible_at_ms: int = 0,
        ttl_ms: int = -1,
    ) -> None:
        """Add one message.

        Args:
            envelope: what the consumer gets back (:mod:`kombu_opendata.protocol.envelope`).
            headers: the metadata headers, texts; not changed and not kept.
            priority: Kombu's, 0 to 255, higher first.
            created_at_ms: ms since the epoch; 0 for the commit's time.
            visible_at_ms: not delivered before; 0 is at once.
            ttl_ms: how long from the commit on it may be delivered, -1 for ever.

        Raises:
            MessageTooLarge: the envelope is over the broker's limit. The row was not added.
            InvalidMessage: of this row or one of the 255 before it; ``row`` counts from 0.
            StoreError, StoreFull: the batch can't be written.
        """
        size = len(envelope)
        if size > self._limit:
            self._too_large(size, self.rows)
        self._envelopes.append(envelope)
        self._fields.append((headers, exchange, routing_key, priority, created_at_ms, visible_at_ms, ttl_ms))
        self._pending_bytes += size
        if len(self._envelopes) >= fmt.BLOCK_ROWS or self._pending_bytes >= fmt.SEGMENT_BYTES:
            self._flush()

    def add_many(
        self,
        envelopes: Sequence[bytes],
        headers: Headers,
        *,
        exchange: str | Sequence[str] = "",
        routing_key: str | Sequence[str] = "",
        priority: int | Sequence[int] = 0,
        created_at_ms: int | Sequence[int] = 0,
        visible_at_ms: int | Sequence[int] = 0,
        ttl_ms: int | Sequence[int] = -1,
    ) -> None:
        """Add many messages; what is one value counts for each of them. Otherwise as :meth:`add`.

        Raises:
            RequestError: a column with another number of values than there are envelopes.
        """
        self._check_open()
        columns: dict[str, Any] = {
            "exchange": exchange, "routing_key": routing_key, "priority": priority, "created_at_ms": created_at_ms,
            "visible_at_ms": visible_at_ms, "ttl_ms": ttl_ms,
        }  # fmt: skip
        count = len(envelopes)
        for name, column in chain(columns.items(), headers.items()):
            if not isinstance(column, (str, int)) and len(column) != count:
                raise RequestError(f"column {name!r} has {len(column)} values for {count} messages", name=name)
        self._flush()
        start = 0
        while start < count:
            end = self._block_end(envelopes, start)
            part = {name: _slice(column, start, end) for name, column in columns.items()}
            self._add_block(
                envelopes[start:end], {name: _slice(column, start, end) for name, column in headers.items()}, part
            )
            start = end

    def _block_end(self, envelopes: Sequence[bytes], start: int) -> int:
        size = 0
        end = min(start + fmt.BLOCK_ROWS, len(envelopes))
        for position in range(start, end):
            length = len(envelopes[position])
            if length > self._limit:
                self._too_large(length, self.rows + position - start)
            size += length
            if size >= fmt.SEGMENT_BYTES:
                return position + 1
        return end

    def _too_large(self, size: int, row: int) -> None:
        raise MessageTooLarge(
            f"row {row} of partition {self._partition}: the message has {size} bytes and the broker's limit is "
            f"{self._limit}: store large data elsewhere and send a reference, or raise the broker's maximum",
            size=size,
            limit=self._limit,
            row=row,
            partition=self._partition,
        )

    # ------------------------------------------------------------------ blocks and segments
    def _flush(self) -> None:
        """Make a block of the rows that were added one by one."""
        self._check_open()
        envelopes, fields = self._envelopes, self._fields
        if not envelopes:
            return
        maps, exchanges, keys, priorities, created, visible, ttls = zip(*fields, strict=True)
        names = dict.fromkeys(chain.from_iterable(maps))
        headers = {name: [each.get(name) for each in maps] for name in names}
        columns = {
            "exchange": exchanges, "routing_key": keys, "priority": priorities, "created_at_ms": created,
            "visible_at_ms": visible, "ttl_ms": ttls,
        }  # fmt: skip
        self._envelopes, self._fields, self._pending_bytes = [], [], 0
        self._add_block(envelopes, headers, {name: list(column) for name, column in columns.items()})

    def _add_block(self, envelopes: Sequence[bytes], headers: dict[str, Any], columns: dict[str, Any]) -> None:
        payload = b"".join(envelopes)
        block, encoded = self._encode(envelopes, headers, columns)
        if len(encoded) > fmt.BLOCK_BYTES and block.rows > 1:
            middle = block.rows // 2
            for start, end in ((0, middle), (middle, block.rows)):
                part = {name: _slice(column, start, end) for name, column in columns.items()}
                cut = {name: _slice(column, start, end) for name, column in headers.items()}
                self._add_block(envelopes[start:end], cut, part)
            return
        self._write(payload)
        self._index += (fmt.SIZE.pack(len(encoded)), encoded)
        self._index_bytes += fmt.SIZE.size + len(encoded)
        self._segment_bytes += len(payload)
        self._segment_rows += block.rows
        self._written_rows += block.rows
        if (
            self._segment_bytes >= fmt.SEGMENT_BYTES
            or self._segment_rows >= fmt.SEGMENT_ROWS
            or self._index_bytes >= fmt.SEGMENT_BYTES
        ):
            self._end_segment()

    def _encode(
        self, envelopes: Sequence[bytes], headers: dict[str, Any], columns: dict[str, Any]
    ) -> tuple[Block, bytes]:
        rows = len(envelopes)
        constants: dict[str, str] = {}
        varying: dict[str, list[str | None]] = {}
        for name, column in headers.items():
            value = _constant(column, rows)
            if type(value) is str:
                constants[name] = value
            elif type(column) is list:
                if value is not None or column.count(None) < rows:
                    varying[name] = column
            elif column is not None:
                varying[name] = [column] * rows
        given = {name: _single(column, rows) for name, column in columns.items()}
        self._check_texts(constants, varying, given, rows)
        self._check_numbers(given)
        block = Block(
            self._segment_bytes, list(map(len, envelopes)), list(map(crc32, envelopes)), constants=constants,
            columns=varying, **given,
        )  # fmt: skip
        return block, fmt.encode_block(block)

    def _check_texts(
        self, constants: dict[str, str], varying: dict[str, list[str | None]], given: dict[str, Any], rows: int
    ) -> None:
        count = len(constants) + len(varying)
        if count > fmt.MAX_HEADERS:
            self._invalid(0, f"{count} different headers; a message has at most {fmt.MAX_HEADERS}", "headers")
        for name in chain(constants, varying):
            self._check_text(name, 0, "the name of a header")
        for name, text in constants.items():
            self._check_text(text, 0, f"header {name[:80]!r}")
        for name, column in varying.items():
            self._check_column(column, f"header {name[:80]!r}")
        for name in ("exchange", "routing_key"):
            value = given[name]
            self._check_column([value] if not isinstance(value, list) else value, name, optional=False)

    def _check_column(self, column: list[Any], what: str, *, optional: bool = True) -> None:
        kinds = set(map(type, column))
        kinds.discard(str)
        if optional:
            kinds.discard(type(None))
        if kinds or max([len(text) for text in column if text is not None], default=0) > _SURELY_FITS:
            for row, text in enumerate(column):
                if text is not None or not optional:
                    self._check_text(text, row, what)

    def _check_text(self, text: Any, row: int, what: str) -> None:
        if type(text) is not str:
            self._invalid(row, f"{what} is {type(text).__name__}, not text", what)
        if len(text) > _SURELY_FITS and (size := len(text.encode("utf-8", "surrogatepass"))) > fmt.MAX_TEXT_BYTES:
            self._invalid(row, f"{what} has {size} bytes and the limit is {fmt.MAX_TEXT_BYTES}", what)

    def _check_numbers(self, given: dict[str, Any]) -> None:
        for name, (low, high) in _NUMBERS.items():
            value = given[name]
            values = value if isinstance(value, list) else [value]
            if set(map(type, values)) != {int} or min(values) < low or max(values) > high:
                for row, each in enumerate(values):
                    if type(each) is not int or not low <= each <= high:
                        self._invalid(row, f"{name} {each!r} is no number from {low} to {high}", name)

    def _invalid(self, row: int, what: str, name: str) -> None:
        place = self._written_rows + row
        text = f"row {place} of partition {self._partition}: {what}"
        raise InvalidMessage(text, row=place, partition=self._partition, name=name)

    def _end_segment(self) -> None:
        if not self._segment_rows:
            return
        index = b"".join(self._index)
        self._write(index)
        self._segments.append(
            Segment(
                self._segment_start, self._segment_bytes, len(index), crc32(index), self._segment_rows,
                len(self._index) // 2,
            )
        )  # fmt: skip
        self._segment_start = self._size
        self._index = []
        self._index_bytes = self._segment_bytes = self._segment_rows = 0

    # ------------------------------------------------------------------ the object
    def _write(self, data: bytes) -> None:
        self._size += len(data)
        if self._output is None:
            self._held.append(data)
            if self._size > self._target.inline_bytes or self._written_rows > self._target.inline_rows:
                self._begin_object()
            return
        self._output.write(data)

    def _begin_object(self) -> None:
        self._folder = open_folder(self._target.url, self._target.options)
        self._output = self._folder.create(self._path)
        held, self._held = self._held, []
        for data in held:
            self._output.write(data)

    def close(self) -> BatchInfo:
        """Make it durable; returns what the commit must be told.

        Raises:
            InvalidMessage: of the last rows.
            StoreError, StoreFull: it can't be written. Call :meth:`abort`.
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
        data = b"".join(self._held)
        if self._output is not None:
            self._output.commit()
        self._ended = True
        uri = batch_uri(self._path)
        return BatchInfo(uri, self._written_rows, self._size, checksum, self._partition, self._attempt, data)

    def abort(self) -> None:
        """Forget all that was added; nothing is left of it. Does nothing after :meth:`close`."""
        if self._ended:
            return
        self._ended = True
        self._held.clear()
        if self._output is not None:
            self._output.abort()
        if self._folder is not None:
            self._folder.close()

    def _check_open(self) -> None:
        if self._ended:
            raise RequestError("the batch was closed or aborted: a new attempt needs a new writer")


def write_object(folder: Folder, info: BatchInfo) -> BatchInfo:
    """Write a batch that carries its bytes as an object after all; returns it without them."""
    output = folder.create(info.uri.removeprefix("batch:"))
    try:
        output.write(info.data)
        output.commit()
    except BaseException:
        output.abort()
        raise
    return BatchInfo(info.uri, info.rows, info.bytes, info.checksum, info.partition, info.attempt)


def _slice(column: Any, start: int, end: int) -> Any:
    if isinstance(column, (str, int)) or column is None:
        return column
    part = column[start:end]
    return part if type(part) is list else list(part)


def _constant(column: Any, rows: int) -> Any:
    """The value that all rows have; None if there is no such value, or it is None."""
    if type(column) is not list:
        return column
    first = column[0]
    return first if first is not None and column.count(first) == rows else None


def _single(column: Any, rows: int) -> Any:
    """One value where all rows have the same."""
    if type(column) is list and column.count(column[0]) == rows:
        return column[0]
    return column
