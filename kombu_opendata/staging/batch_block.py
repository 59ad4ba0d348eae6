"""Index block of a batch: the columns of up to 256 rows, as msgpack, and their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn
from zlib import crc32

import msgspec
from msgspec import Raw

from ..errors import InvalidMessage
from .batch_format import FRAME_BYTES, corrupt

#: rows of a block, and of a step of routing
BLOCK_ROWS = 256
#: a larger block is split unless it has a single row
BLOCK_BYTES = 1 << 20
MAX_HEADERS = 255
MAX_TEXT_BYTES = 0xFFFF

#: a text of at most this many characters is within the limit in any case
_SURELY_FITS = MAX_TEXT_BYTES // 4
#: the largest time or TTL in ms
_MAX_MS = 1 << 53
#: columns of numbers, with the lowest and the highest valid value
_NUMBERS = {"priority": (0, 255), **dict.fromkeys(("created_at_ms", "visible_at_ms", "ttl_ms"), (-1, _MAX_MS))}
_TEXTS = ("exchange", "routing_key")

#: raises the caller's error; its arguments are the row in the block, the name of the column and the error
Refuse = Callable[[int, str, str], NoReturn]


class IndexBlock(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Columns of some rows. A column that is not a list has the same value in each row.

    Attributes:
        offset: the offset of the frame (in version 1, of the first envelope), in bytes from the segment's start.
        lengths: the lengths of the contiguous envelopes.
        checksums: CRC-32 of each envelope.
        priority: Kombu's, 0 to 255.
        created_at_ms, visible_at_ms: ms since the epoch; a ``visible_at_ms`` of 0 means immediately.
        ttl_ms: -1 means no TTL.
        constants: metadata headers that all rows have.
        columns: the other metadata headers; None in rows without the header.
        frame_bytes: bytes of the frame with the envelopes; 0 if they are not compressed.
        frame_checksum: CRC-32 of the frame.
        start: the offset of the first envelope in the frame's contents; 0 except in a part of a block.
    """

    offset: int
    lengths: list[int]
    checksums: list[int]
    exchange: str | list[str]
    routing_key: str | list[str]
    priority: int | list[int]
    created_at_ms: int | list[int]
    visible_at_ms: int | list[int]
    ttl_ms: int | list[int]
    constants: dict[str, str]
    columns: dict[str, list[str | None]]
    frame_bytes: int = 0
    frame_checksum: int = 0
    start: int = 0

    @property
    def rows(self) -> int:
        return len(self.lengths)

    def headers_of(self, row: int) -> dict[str, str]:
        own = ((name, column[row]) for name, column in self.columns.items())
        return {**self.constants, **{name: text for name, text in own if text is not None}}

    def damaged_rows(self, envelopes: bytes) -> Iterator[int]:
        """Yield the rows whose envelopes, of these contiguous ones, do not match their checksums."""
        at = 0
        for row, (length, checksum) in enumerate(zip(self.lengths, self.checksums, strict=True)):
            if crc32(envelopes[at : at + length]) != checksum:
                yield row
            at += length


def value_at(column: Any, row: int) -> Any:
    """Return the value of a row; a column that is not a list has the same value in each row."""
    return column[row] if isinstance(column, list) else column


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(IndexBlock)
#: the fields of a block, of which only those about places are decoded
_place_decoder = msgspec.msgpack.Decoder(
    tuple[int, list[int], list[int], Raw, Raw, Raw, Raw, Raw, Raw, Raw, Raw, int, int, int]
)


# ---------------------------------------------------------------------- encoding
class PendingRows(NamedTuple):
    """Rows that are not encoded yet. A column is one value for all rows, or a sequence with a value for each."""

    envelopes: Sequence[bytes]
    headers: Mapping[str, Any]  # the metadata headers by name
    fields: Mapping[str, Any]  # the other columns of a :class:`IndexBlock` by name

    def part(self, start: int, end: int) -> PendingRows:
        """Return the rows from ``start`` to before ``end``."""
        headers = {name: _part(column, start, end) for name, column in self.headers.items()}
        fields = {name: _part(column, start, end) for name, column in self.fields.items()}
        return PendingRows(self.envelopes[start:end], headers, fields)

    def block(self, refuse: Refuse) -> IndexBlock:
        """Return a validated block of the rows, without a place. Their columns must be lists or single values."""
        rows = len(self.envelopes)
        constants: dict[str, str] = {}
        varying: dict[str, list[str | None]] = {}
        for name, column in self.headers.items():
            single = _single(column, rows)
            if type(single) is str:
                constants[name] = single
            elif single is not None:
                varying[name] = column if type(column) is list else [column] * rows
        lengths = list(map(len, self.envelopes))
        checksums = list(map(crc32, self.envelopes))
        fields = {name: _single(column, rows) for name, column in self.fields.items()}
        block = IndexBlock(0, lengths, checksums, constants=constants, columns=varying, **fields)
        _check_types(block, refuse)
        _check_limits(block, refuse)
        return block


def _part(column: Any, start: int, end: int) -> Any:
    if isinstance(column, (str, int)) or column is None:
        return column
    part = column[start:end]
    return part if type(part) is list else list(part)


def _single(column: Any, rows: int) -> Any:
    """Return the value of a column if all rows have the same, else the column."""
    if type(column) is list and column.count(column[0]) == rows:
        return column[0]
    return column


def encode_block(block: IndexBlock) -> bytes:
    """Encode a block, without its size.

    Raises:
        InvalidMessage: a text contains a surrogate, so it is not valid Unicode.
    """
    try:
        return _encoder.encode(block)
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError) as exc:
        raise InvalidMessage(f"a header, exchange or routing key can't be encoded: {exc}") from exc


def cut(block: IndexBlock, start: int, rows: int) -> IndexBlock:
    """Return the columns of some of a block's rows."""
    end = start + rows
    names = (*_TEXTS, *_NUMBERS)
    fields = {name: value[start:end] for name in names if isinstance(value := getattr(block, name), list)}
    skipped = sum(block.lengths[:start])
    return msgspec.structs.replace(
        block,
        offset=block.offset if block.frame_bytes else block.offset + skipped,
        start=block.start + skipped if block.frame_bytes else 0,
        lengths=block.lengths[start:end],
        checksums=block.checksums[start:end],
        columns={name: column[start:end] for name, column in block.columns.items()},
        **fields,
    )


# ---------------------------------------------------------------------- decoding
def decode_block(data: bytes, path: str, payload_bytes: int, max_message_bytes: int) -> IndexBlock:
    """Decode a block. Its envelopes, or its frame, must lie within the ``payload_bytes`` of its segment.

    Raises:
        DamagedBatch: a field has an impossible value.
    """
    try:
        block = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise corrupt(path, 0, f"an index block does not decode ({exc})") from exc
    _check_places(block, data, path, payload_bytes, max_message_bytes)
    _check_lengths(block, path)

    def refuse(row: int, name: str, problem: str) -> NoReturn:
        raise corrupt(path, 0, f"row {row} of a block: {problem}")

    _check_limits(block, refuse)
    return block


def decode_places(data: bytes, path: str, payload_bytes: int, max_message_bytes: int) -> IndexBlock:
    """Decode a block as :func:`decode_block`, but without its texts, numbers and headers, in a tenth of the time."""
    try:
        offset, lengths, checksums, *_others, frame_bytes, frame_checksum, start = _place_decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise corrupt(path, 0, f"an index block does not decode ({exc})") from exc
    block = IndexBlock(offset, lengths, checksums, "", "", 0, 0, 0, -1, {}, {}, frame_bytes, frame_checksum, start)
    _check_places(block, data, path, payload_bytes, max_message_bytes)
    return block


def _check_places(block: IndexBlock, data: bytes, path: str, payload_bytes: int, max_message_bytes: int) -> None:
    """Check the fields about the envelopes of a block, which was decoded from ``data``."""
    rows = block.rows
    if len(data) > BLOCK_BYTES and rows > 1:
        raise corrupt(path, 0, f"a block of {len(data)} bytes with {rows} rows")
    if not 0 < rows <= BLOCK_ROWS or len(block.checksums) != rows:
        raise corrupt(path, 0, f"a block of {rows} rows with {len(block.checksums)} checksums")
    if min(block.lengths) < 0 or max(block.lengths) > max_message_bytes:
        raise corrupt(path, 0, f"an envelope of {max(block.lengths)} bytes; the limit is {max_message_bytes}")
    size = sum(block.lengths)
    if min(block.offset, block.frame_bytes) < 0 or block.offset + (block.frame_bytes or size) > payload_bytes:
        raise corrupt(path, 0, f"an envelope that ends after the segment's {payload_bytes} bytes")
    if block.start or (block.frame_bytes and size > FRAME_BYTES and rows > 1):
        raise corrupt(path, 0, f"a frame with {rows} envelopes of {size} bytes from byte {block.start} on")
    if min(*block.checksums, block.frame_checksum) < 0 or max(*block.checksums, block.frame_checksum) > 0xFFFF_FFFF:
        raise corrupt(path, 0, "a checksum out of range")


def _check_lengths(block: IndexBlock, path: str) -> None:
    if block.constants.keys() & block.columns.keys():
        raise corrupt(path, 0, "a header that is both the same in all rows and not")
    fields = {name: getattr(block, name) for name in (*_TEXTS, *_NUMBERS)}
    columns = {**block.columns, **{name: value for name, value in fields.items() if isinstance(value, list)}}
    for name, column in columns.items():
        if len(column) != block.rows:
            raise corrupt(path, 0, f"{len(column)} values of {name[:80]!r} for {block.rows} rows")


# ---------------------------------------------------------------------- checks
def _check_types(block: IndexBlock, refuse: Refuse) -> None:
    """Check that numbers are numbers and texts are texts, which a decoder ensures already."""
    for name in _NUMBERS:
        _check_type(_values(block, name), (int,), name, "a number", refuse)
    for name in _TEXTS:
        _check_type(_values(block, name), (str,), name, "text", refuse)
    _check_type([*block.constants, *block.columns], (str,), "the name of a header", "text", refuse)
    for name, column in block.columns.items():
        _check_type(column, (str, type(None)), f"header {name[:80]!r}", "text", refuse)


def _check_type(column: list[Any], kinds: tuple[type, ...], name: str, type_name: str, refuse: Refuse) -> None:
    if not set(map(type, column)).issubset(kinds):
        row, kind = next((row, type(value)) for row, value in enumerate(column) if type(value) not in kinds)
        refuse(row, name, f"{name} is {kind.__name__}, not {type_name}")


def _check_limits(block: IndexBlock, refuse: Refuse) -> None:
    count = len(block.constants) + len(block.columns)
    if count > MAX_HEADERS:
        refuse(0, "headers", f"{count} different headers; a message has at most {MAX_HEADERS}")
    for name, (low, high) in _NUMBERS.items():
        numbers = _values(block, name)
        if min(numbers) < low or max(numbers) > high:
            row, number = next((row, number) for row, number in enumerate(numbers) if not low <= number <= high)
            refuse(row, name, f"{name} is {number} and must be a number from {low} to {high}")
    for name in _TEXTS:
        _check_sizes(_values(block, name), name, refuse)
    headers: dict[str, Sequence[str | None]] = {name: [text] for name, text in block.constants.items()}
    headers |= block.columns
    for name, column in headers.items():
        _check_sizes([name], "the name of a header", refuse)
        _check_sizes(column, f"header {name[:80]!r}", refuse)


def _check_sizes(column: Sequence[str | None], name: str, refuse: Refuse) -> None:
    if max([len(text) for text in column if text is not None], default=0) <= _SURELY_FITS:
        return
    for row, text in enumerate(column):
        size = len((text or "").encode("utf-8", "surrogatepass"))
        if size > MAX_TEXT_BYTES:
            refuse(row, name, f"{name} has {size} bytes and the limit is {MAX_TEXT_BYTES}")


def _values(block: IndexBlock, name: str) -> list[Any]:
    value = getattr(block, name)
    return value if isinstance(value, list) else [value]
