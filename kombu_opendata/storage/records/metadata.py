"""Metadata: ids, times and headers of a message; one entry of the metadata log.

==================  =======  =====================================================
field               type     meaning
==================  =======  =====================================================
message id          u64      the id of the payload
created at          i64      ms since the epoch, by the producer's clock
received at         i64      ms since the epoch, by the broker's clock
visible at          i64      ms since the epoch; not delivered before
retention           u32      seconds from received at; 0 means unlimited
number of headers   u8
headers             each     key ``Utf8``, value ``Utf8``
==================  =======  =====================================================

Source: RFC 0001. The format allows a key twice, so a decoded record keeps the pairs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from ...errors import CorruptRecord, InvalidMessage
from . import field_types

MAX_HEADERS = 0xFF

_FIELDS = "message id, created at, received at, visible at, retention seconds, headers"
_HEAD = struct.Struct("<QqqqIB")
#: bounds of the caches of encoded headers, and of combinations of selected headers that are decoded: values recur
_PAIRS_KEPT, _MAX_TEXT = 4096, 255


Pairs = tuple[tuple[str, str], ...]


class Metadata(NamedTuple):
    message_id: int
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    retention_seconds: int
    #: in stored order; a repeated key occurs repeatedly
    header_pairs: Pairs

    @property
    def headers(self) -> dict[str, str]:
        """The headers; of a repeated key the last value."""
        return dict(self.header_pairs)


class _EncodedPairs(dict[tuple[str, str], bytes]):
    """Encoded headers. Some, such as a task's name, recur in all messages; others are unique, such as its id."""

    def __missing__(self, pair: tuple[str, str]) -> bytes:
        name, text = pair
        encode_name = _encode_name if len(name) <= _MAX_TEXT else field_types.utf8
        encoded = encode_name(name) + field_types.utf8(text)
        if len(encoded) <= _MAX_TEXT:
            if len(self) >= _PAIRS_KEPT:
                self.clear()
            self[pair] = encoded
        return encoded


_encode_name = lru_cache(_PAIRS_KEPT)(field_types.utf8)
_pairs = _EncodedPairs()


def encode(
    message_id: int,
    created_at_ms: int,
    received_at_ms: int,
    visible_at_ms: int,
    retention_seconds: int,
    headers: dict[str, str] | Sequence[tuple[str, str]],
) -> bytes:
    count = len(headers)
    if count > MAX_HEADERS:
        raise InvalidMessage(f"{count} headers; a message holds at most {MAX_HEADERS}", limit=MAX_HEADERS, size=count)
    try:
        head = _HEAD.pack(message_id, created_at_ms, received_at_ms, visible_at_ms, retention_seconds, count)
    except struct.error:
        fields = message_id, created_at_ms, received_at_ms, visible_at_ms, retention_seconds, count
        head = field_types.pack(_HEAD, _FIELDS, *fields)  # raises
    return head + encode_pairs(headers.items() if isinstance(headers, dict) else headers)


def encode_pairs(headers: Iterable[tuple[str, str]]) -> bytes:
    """Encode headers as in the record, for :func:`encode_with`."""
    return b"".join(map(_pairs.__getitem__, headers))


def encode_with(
    message_id: int,
    created_at_ms: int,
    received_at_ms: int,
    visible_at_ms: int,
    retention: int,
    count: int,
    pairs: bytes,
) -> bytes:
    """Encode metadata as :func:`encode`, with ``count`` encoded headers."""
    return _HEAD.pack(message_id, created_at_ms, received_at_ms, visible_at_ms, retention, count) + pairs


class Decoder:
    """The decoder of metadata, with all headers or only the headers with the keys ``names``.

    The messages of a publisher often differ only in values of the same length. A *layout* of such records is cached, so
    that a single call decodes the next one: scans of the metadata log decode millions.
    """

    __slots__ = ("_count", "_known", "_layouts", "_misses", "_name_filter")

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self._name_filter = None if names is None else {name.encode() for name in names}
        self._layouts: dict[int, list[_Layout]] = {}  # by the size of the record
        self._known: dict[tuple[tuple[str, ...], tuple[bytes, ...]], Pairs] = {}  # decoded, by names and raw values
        self._count = 0
        self._misses = 0

    def decode(self, key: bytes, value: bytes) -> Metadata:
        names: tuple[str, ...]
        numbers: Sequence[int]
        layouts = self._layouts.get(len(value), ())
        whole = int.from_bytes(value, "little") if layouts else 0
        for layout in layouts:
            if whole & layout.mask == layout.expected:
                fields = layout.unpack(value)
                names, values, numbers = layout.names, fields[5:], fields[:5]
                break
        else:
            names, values, numbers = self._walk(key, value)
        pairs = self._known.get((names, values)) if self._name_filter is not None else None
        if pairs is None:
            try:
                pairs = tuple(zip(names, [raw.decode() for raw in values], strict=True))
            except UnicodeDecodeError:
                raise _not_utf8(key, value) from None
            if self._name_filter is not None and sum(map(len, values)) <= _PAIRS_BYTES:
                self._remember(names, values, pairs)
        return Metadata._make((*numbers, pairs))

    def _remember(self, names: tuple[str, ...], values: tuple[bytes, ...], pairs: Pairs) -> None:
        if len(self._known) >= _PAIRS_KEPT:
            self._known.clear()
        self._known[names, values] = pairs

    def _walk(self, key: bytes, value: bytes) -> tuple[tuple[str, ...], tuple[bytes, ...], Sequence[int]]:
        """Return names and values of the headers, and the numbers, of a record whose layout is new."""
        *numbers, headers = field_types.read(_HEAD, key, value, 0)
        texts = _texts(key, value, headers)
        name_filter = self._name_filter
        places = [at for at in range(0, len(texts), 2) if name_filter is None or texts[at] in name_filter]
        try:
            names = tuple([texts[at].decode() for at in places])
        except UnicodeDecodeError:
            raise _not_utf8(key, value) from None
        self._misses += 1
        if self._misses > _MISSES_TO_FORGET:
            self._layouts = {}
            self._count = 0
            self._misses = 0
        if headers and self._count < _MAX_LAYOUTS and len(value) <= _LAYOUT_BYTES:
            layouts = self._layouts.setdefault(len(value), [])
            if len(layouts) < _LAYOUTS_OF_A_SIZE:
                layouts.append(_Layout(value, [len(text) for text in texts], places, names))
                self._count += 1
        return names, tuple([texts[at + 1] for at in places]), numbers


#: most layouts that a decoder caches
_MAX_LAYOUTS = 512
#: most layouts for records of one size
_LAYOUTS_OF_A_SIZE = 4
#: records without a match after which all layouts are cleared
_MISSES_TO_FORGET = 10_000
#: the longest record with a layout, as a header may have 64 KiB
_LAYOUT_BYTES = 4096
#: the most bytes of a combination of selected headers that is cached
_PAIRS_BYTES = 256


class _Layout:
    """The layout of records with the same header keys and lengths of values as ``example``.

    The bits of ``mask`` select the number of the headers, their keys, and the lengths of their values. A record has the
    layout if these bits of its bytes, read as one integer, equal ``expected``.
    """

    __slots__ = ("expected", "mask", "names", "unpack")

    def __init__(self, example: bytes, lengths: list[int], chosen: list[int], names: tuple[str, ...]) -> None:
        code, fixed = ["<QqqqIx"], [b"\0" * (_HEAD.size - 1), b"\xff"]
        for at in range(0, len(lengths), 2):
            key, value = lengths[at] + 4, lengths[at + 1]
            code.append(f"{key}x{value}{'s' if at in chosen else 'x'}")
            fixed += b"\xff" * key, b"\0" * value
        self.unpack = struct.Struct("".join(code)).unpack
        self.mask = int.from_bytes(b"".join(fixed), "little")
        self.expected = int.from_bytes(example, "little") & self.mask
        self.names = names


def _texts(key: bytes, value: bytes, headers: int) -> list[bytes]:
    """Return the keys and values of the headers, alternating."""
    texts: list[bytes] = []
    end = _HEAD.size
    try:
        for _ in range(2 * headers):
            start = end + 2
            end = start + (value[end] | value[end + 1] << 8)
            texts.append(value[start:end])
    except IndexError:
        raise field_types.corrupt(key, len(value), f"{headers} headers announced, {len(texts) // 2} found") from None
    if end > len(value):
        raise field_types.corrupt(key, len(value), "a header that extends beyond the record")
    field_types.check_end(key, value, end)
    return texts


def _not_utf8(key: bytes, value: bytes) -> CorruptRecord:
    """Return the error for a record with a text that is not UTF-8."""
    offset = _HEAD.size
    for text in _texts(key, value, value[offset - 1]):
        offset += 2
        try:
            text.decode()
        except UnicodeDecodeError as error:
            return field_types.corrupt(key, offset + error.start, "a header that is not UTF-8")
        offset += len(text)
    return field_types.corrupt(key, offset, "a header that is not UTF-8")


#: decodes the metadata in a record: ``decode(key, value)``, see :class:`Decoder`
decode = Decoder().decode


def received_at(key: bytes, value: bytes) -> int:
    """Return the time at which a message was received, ms since the epoch."""
    return int(field_types.read(_HEAD, key, value, 0)[2])


def retention(key: bytes, value: bytes) -> int:
    """Return the retention of a message in seconds; 0 means unlimited. Raises as :func:`received_at`."""
    return int(field_types.read(_HEAD, key, value, 0)[4])


def headers_part(key: bytes, value: bytes) -> bytes:
    """Return the end of a record: the number of headers, and the headers."""
    decode(key, value)
    return value[_HEAD.size - 1 :]
