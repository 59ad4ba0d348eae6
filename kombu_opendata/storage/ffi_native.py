"""The fast way into the SlateDB binding: one native copy per value instead of a Python loop over its bytes.

Everything here relies on how the generated module of slatedb 0.17 works inside; :func:`.ffi.select` decides whether
it may be used. What crosses the border (big-endian):

=============  ==========================================================================
bytes          length i32, then the bytes
optional T     ``00``, or ``01`` then T
sequence of T  count i32, then each T
KeyRange       optional bytes start, bool, optional bytes end, bool (a bool is one byte)
KeyValue       bytes key, bytes value, seq u64, created i64, optional i64 expires
=============  ==========================================================================

Ownership: a native call consumes the buffers and the object handle it is given, even when it fails, so each call gets
a clone of the handle. A buffer that a call returns is ours to free.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import struct
from typing import Any

from kombu_opendata.storage.ffi import Batch, Binding, Pair, ScanSettings, public, stock_scan_options

_LENGTH = struct.Struct(">i")
_LARGEST = 2**31 - 1 - _LENGTH.size
_SEQ_AND_CREATED_BYTES = 16
_EXPIRES_BYTES = 8
_SYMBOL = "uniffi_slatedb_uniffi_fn_"
_RUNTIME = "ffi_slatedb_uniffi_"


class _RustBuffer(ctypes.Structure):
    _fields_ = (("capacity", ctypes.c_uint64), ("len", ctypes.c_uint64), ("data", ctypes.c_void_p))


class _ForeignBytes(ctypes.Structure):
    # c_char_p, where the generated code has POINTER(c_char): it takes a bytes object as it is.
    _fields_ = (("len", ctypes.c_int32), ("data", ctypes.c_char_p))


class _Native:
    """The native functions with argument types that take bytes cheaply.

    A library object of our own keeps these types apart from the generated module's. The calls that only fill a buffer
    or a batch return at once, so they keep the interpreter lock; the others are the generated module's own.
    """

    def __init__(self) -> None:
        self.generated: Any = importlib.import_module("slatedb.uniffi._slatedb_uniffi.slatedb")
        library = ctypes.PyDLL(self.generated._UniffiLib._name)
        self.status_type: Any = self.generated._UniffiRustCallStatus
        status = ctypes.POINTER(self.status_type)
        u64, buffer = ctypes.c_uint64, _RustBuffer

        def bind(name: str, result: Any, *arguments: Any) -> Any:
            function = library[name]
            function.argtypes, function.restype = arguments, result
            return function

        self.from_bytes = bind(_RUNTIME + "rustbuffer_from_bytes", buffer, _ForeignBytes, status)
        self.free = bind(_RUNTIME + "rustbuffer_free", None, buffer, status)
        self.complete = bind(_RUNTIME + "rust_future_complete_rust_buffer", buffer, u64, status)
        self.clone_batch = bind(_SYMBOL + "clone_writebatch", u64, u64, status)
        self.batch_put = bind(_SYMBOL + "method_writebatch_put", None, u64, buffer, buffer, status)
        self.batch_delete = bind(_SYMBOL + "method_writebatch_delete", None, u64, buffer, status)
        self.get = {kind: bind(f"{_SYMBOL}method_{kind}_get", u64, u64, buffer) for kind in ("db", "dbreader")}
        self.scan = {
            kind: bind(f"{_SYMBOL}method_{kind}_scan_with_options", u64, u64, buffer, buffer)
            for kind in ("db", "dbreader")
        }

    def check(self, status: Any) -> None:
        """Raise what `status` reports."""
        if status.code:
            generated = self.generated
            generated._uniffi_check_call_status(generated._UniffiFfiConverterTypeError, status)

    def lower(self, data: bytes) -> _RustBuffer:
        """`data` in a native buffer; the native call that gets it frees it."""
        status = self.status_type()
        buffer: _RustBuffer = self.from_bytes(_ForeignBytes(len(data), data), ctypes.byref(status))
        self.check(status)
        return buffer

    def lift(self, buffer: _RustBuffer) -> bytes:
        """The content of a native buffer, which is freed."""
        try:
            return ctypes.string_at(buffer.data, buffer.len) if buffer.len else b""
        finally:
            self.free(buffer, ctypes.byref(self.status_type()))

    async def call(self, future: int, decode: Any) -> Any:
        """Wait for a native future that gives a buffer."""
        g = self.generated
        lib = g._UniffiLib
        return await g._uniffi_rust_call_async(
            future,
            lib.ffi_slatedb_uniffi_rust_future_poll_rust_buffer,
            self.complete,
            lib.ffi_slatedb_uniffi_rust_future_free_rust_buffer,
            lambda buffer: decode(self.lift(buffer)),
            g._UniffiFfiConverterTypeError,
        )

    async def call_for_iterator(self, future: int) -> Any:
        """Wait for a native future that gives a scan iterator."""
        g = self.generated
        lib = g._UniffiLib
        return await g._uniffi_rust_call_async(
            future,
            lib.ffi_slatedb_uniffi_rust_future_poll_u64,
            lib.ffi_slatedb_uniffi_rust_future_complete_u64,
            lib.ffi_slatedb_uniffi_rust_future_free_u64,
            g._UniffiFfiConverterTypeDbIterator.lift,
            g._UniffiFfiConverterTypeError,
        )


# ---- encoding
def encode_bytes(data: bytes) -> bytes:
    """`data` with its length in front."""
    if len(data) > _LARGEST:
        raise ValueError(f"{len(data)} bytes are too many for one value: at most {_LARGEST}")
    return _LENGTH.pack(len(data)) + data


def encode_range(start: bytes, end: bytes | None) -> bytes:
    """``start <= key < end``; an empty `start` and no `end` mean unbounded."""
    low = b"\1" + encode_bytes(start) if start else b"\0"
    high = b"\0" if end is None else b"\1" + encode_bytes(end)
    return low + b"\1" + high + b"\0"


def decode_optional_bytes(data: bytes) -> bytes | None:
    """Optional bytes."""
    if data == b"\0":
        return None
    if data[:1] != b"\1" or _LENGTH.unpack_from(data, 1)[0] != len(data) - 5:
        raise ValueError("an optional value from SlateDB does not decode")
    return data[5:]


def decode_pairs(data: bytes) -> list[Pair]:
    """The keys and values of a sequence of KeyValue."""
    length_at = _LENGTH.unpack_from
    at = _LENGTH.size
    pairs = []
    for _ in range(length_at(data)[0]):
        key_at = at + 4
        key_end = key_at + length_at(data, at)[0]
        value_at = key_end + 4
        value_end = value_at + length_at(data, key_end)[0]
        pairs.append((data[key_at:key_end], data[value_at:value_end]))
        at = value_end + _SEQ_AND_CREATED_BYTES
        at += 1 + _EXPIRES_BYTES * data[at]
    if at != len(data):
        raise ValueError("a batch of rows from SlateDB does not decode")
    return pairs


# ---- the binding
class FastBatch(Batch):
    """A batch that is filled through the native symbols.

    The call's status and the two argument structures are made once: building them costs as much as the native calls.
    """

    __slots__ = ("_handle", "_key", "_native", "_reference", "_status", "_value")

    def __init__(self, native: _Native) -> None:
        super().__init__(public().WriteBatch())
        self._native = native
        self._handle: int = self.raw._handle
        self._key, self._value = _ForeignBytes(), _ForeignBytes()
        self._reset_status()

    def _put(self, key: bytes, value: bytes) -> None:
        native, reference = self._native, self._reference
        _fill(self._key, key)
        _fill(self._value, value)
        native.batch_put(
            native.clone_batch(self._handle, reference),
            native.from_bytes(self._key, reference),
            native.from_bytes(self._value, reference),
            reference,
        )
        if self._status.code:
            self._raise()

    def _delete(self, key: bytes) -> None:
        native, reference = self._native, self._reference
        _fill(self._key, key)
        native.batch_delete(
            native.clone_batch(self._handle, reference), native.from_bytes(self._key, reference), reference
        )
        if self._status.code:
            self._raise()

    def _reset_status(self) -> None:
        self._status = self._native.status_type()
        self._reference = ctypes.byref(self._status)

    def _raise(self) -> None:
        failed = self._status
        self._reset_status()
        self._native.check(failed)


def _fill(argument: _ForeignBytes, data: bytes) -> None:
    encoded = encode_bytes(data)
    argument.len = len(encoded)
    argument.data = encoded


class FastBinding(Binding):
    """The native symbols, where that pays; the public interface for the rest."""

    fast_path = True

    def __init__(self) -> None:
        self._native = _Native()

    def batch(self) -> Batch:
        return FastBatch(self._native)

    async def get(self, db: Any, key: bytes) -> bytes | None:
        native = self._native
        lowered = native.lower(encode_bytes(key))
        future = native.get[_kind(db)](db._uniffi_clone_handle(), lowered)
        value: bytes | None = await native.call(future, decode_optional_bytes)
        return value

    async def scan(self, db: Any, start: bytes, end: bytes | None, settings: ScanSettings) -> Any:
        native = self._native
        keys = native.lower(encode_range(start, end))
        options = native.lower(_scan_options(native, settings))
        future = native.scan[_kind(db)](db._uniffi_clone_handle(), keys, options)
        return await native.call_for_iterator(future)

    async def next_batch(self, iterator: Any, limit: int) -> list[Pair]:
        native = self._native
        start = native.generated._UniffiLib.uniffi_slatedb_uniffi_fn_method_dbiterator_next_batch
        pairs: list[Pair] = await native.call(start(iterator._uniffi_clone_handle(), limit), decode_pairs)
        return pairs


def _kind(db: Any) -> str:
    return type(db).__name__.lower()


@functools.lru_cache(maxsize=64)
def _scan_options(native: _Native, settings: ScanSettings) -> bytes:
    """`settings` as the generated module encodes them."""
    converter = native.generated._UniffiFfiConverterTypeScanOptions
    buffer = converter.lower(stock_scan_options(settings))
    try:
        return ctypes.string_at(buffer.data, buffer.len)
    finally:
        buffer.free()
