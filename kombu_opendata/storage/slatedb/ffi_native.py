"""Fast calls into the SlateDB binding: one native copy per value instead of a Python loop over its bytes.

This module relies on the internals of the generated module of slatedb 0.17; :mod:`.ffi_choice` decides about its
use. :mod:`.rows` decodes rows, :mod:`.ffi_polls` waits for futures.

Ownership: a native call consumes its buffers and its object handle, even if it fails, so each call receives a clone of
the handle. The caller must free a buffer that a call returns.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from .ffi import Range, ScanSettings, SlateBinding, WriteBatch, public, stock_scan_options
from .ffi_polls import Polls, Wait
from .rows import LENGTH, Pair, Rows, decode_pairs, decode_rows

_PACK = LENGTH.pack
_PREFIX = LENGTH.size  # bytes before a key or a value
LARGEST = 2**31 - 1 - _PREFIX
_SYMBOL = "uniffi_slatedb_uniffi_fn_"
_RUNTIME = "ffi_slatedb_uniffi_"

T = TypeVar("T")


class _RustBuffer(ctypes.Structure):
    _fields_ = (("capacity", ctypes.c_uint64), ("len", ctypes.c_uint64), ("data", ctypes.c_void_p))


class _ForeignBytes(ctypes.Structure):
    # c_char_p, where the generated code has POINTER(c_char): it accepts a bytes object without a conversion.
    _fields_ = (("len", ctypes.c_int32), ("data", ctypes.c_char_p))


class FutureKind(NamedTuple, Generic[T]):
    """The native functions for futures with results of one kind, a buffer or an iterator."""

    poll: Any
    take: Callable[[int], T]
    free: Any


class _Native:
    """The native functions with argument types that accept bytes cheaply.

    The functions come from a separate library object, so the generated module keeps its own argument types. They return
    immediately, and therefore keep the interpreter lock. The functions that poll and free a future are the generated
    module's, which release the lock: they run SlateDB's code or wait for it, and call back into Python.
    """

    def __init__(self) -> None:
        from slatedb.uniffi._slatedb_uniffi import slatedb as generated

        self.generated: Any = generated
        library = ctypes.PyDLL(self.generated._UniffiLib._name)
        self.status_type: Any = self.generated._UniffiRustCallStatus
        status = ctypes.c_void_p  # whose arguments are converted faster than those of a typed pointer
        u64, buffer = ctypes.c_uint64, _RustBuffer

        def bind(name: str, result: Any, *arguments: Any) -> Any:
            function = library[name]
            function.argtypes, function.restype = arguments, result
            return function

        self.from_bytes = bind(_RUNTIME + "rustbuffer_from_bytes", buffer, _ForeignBytes, status)
        self.free = bind(_RUNTIME + "rustbuffer_free", None, buffer, status)
        self.complete_buffer = bind(_RUNTIME + "rust_future_complete_rust_buffer", buffer, u64, status)
        self.complete_handle = bind(_RUNTIME + "rust_future_complete_u64", u64, u64, status)
        self.clone_batch = bind(_SYMBOL + "clone_writebatch", u64, u64, status)
        self.batch_put = bind(_SYMBOL + "method_writebatch_put", None, u64, buffer, buffer, status)
        self.batch_delete = bind(_SYMBOL + "method_writebatch_delete", None, u64, buffer, status)
        shared = self.generated._UniffiLib  # these release the interpreter lock
        self.buffer = FutureKind(
            shared.ffi_slatedb_uniffi_rust_future_poll_rust_buffer,
            self._take_bytes,
            shared.ffi_slatedb_uniffi_rust_future_free_rust_buffer,
        )
        self.iterator = FutureKind(
            shared.ffi_slatedb_uniffi_rust_future_poll_u64,
            self._take_iterator,
            shared.ffi_slatedb_uniffi_rust_future_free_u64,
        )
        self._polls = Polls(self.generated)
        kinds = ("db", "dbreader")
        self.clone = {kind: bind(f"{_SYMBOL}clone_{kind}", u64, u64, status) for kind in (*kinds, "dbiterator")}
        self.get = {kind: bind(f"{_SYMBOL}method_{kind}_get", u64, u64, buffer) for kind in kinds}
        self.scan = {
            kind: bind(f"{_SYMBOL}method_{kind}_scan_with_options", u64, u64, buffer, buffer) for kind in kinds
        }
        self.next_batch = bind(f"{_SYMBOL}method_dbiterator_next_batch", u64, u64, ctypes.c_uint32)

    def handle(self, object: Any) -> int:
        """Return a clone of the handle of a database, reader or iterator; the native call that receives it frees it."""
        status = self.status_type()
        handle: int = self.clone[type(object).__name__.lower()](object._handle, ctypes.byref(status))
        self.check(status)
        return handle

    def check(self, status: Any) -> None:
        """Raise the error in `status`, if any."""
        if status.code:
            generated = self.generated
            generated._uniffi_check_call_status(generated._UniffiFfiConverterTypeError, status)

    def lower(self, data: bytes) -> _RustBuffer:
        """Copy `data` to a native buffer; the native call that receives it frees it."""
        status = self.status_type()
        buffer: _RustBuffer = self.from_bytes(_ForeignBytes(len(data), data), ctypes.byref(status))
        self.check(status)
        return buffer

    def lift(self, buffer: _RustBuffer) -> bytes:
        """Return the content of a native buffer, and free the buffer."""
        try:
            return ctypes.string_at(buffer.data, buffer.len) if buffer.len else b""
        finally:
            self.free(buffer, ctypes.byref(self.status_type()))

    async def call(self, future: int, kind: FutureKind[T], *, rows: int = 1, in_thread: bool = False) -> T:
        """Wait for a native future with about this number of rows."""
        try:
            cancelled = await self._polls.ready(future, kind.poll, rows, in_thread=in_thread)
            result = kind.take(future)
        finally:
            kind.free(future)
        if cancelled is not None:
            raise cancelled  # only now, because the result had to be freed
        return result

    async def call_all(self, futures: Sequence[int], kind: FutureKind[T]) -> list[T]:
        """Poll each future once, then those that wake, until all are ready: a future runs only while it is polled."""
        polls, (poll, take, free) = self._polls, kind
        waits: list[Wait] = []
        results: list[T] = []
        try:
            for future in futures:
                await polls.turn(1)
                waits.append(polls.begin(future, poll))
            while pending := [at for at, wait in enumerate(waits) if not polls.is_ready(wait)]:
                woken = [at for at in pending if waits[at].code >= 0]
                for at in woken:
                    await polls.turn(1)
                    waits[at] = polls.begin(futures[at], poll)
                if not woken:
                    await polls.any_woken([waits[at] for at in pending])
            results.extend(map(take, futures))
            return results
        finally:
            for future, wait in zip(futures[len(results) :], waits[len(results) :], strict=False):
                if polls.is_ready(wait):
                    with contextlib.suppress(self.generated.Error, self.generated.InternalError):
                        take(future)  # frees its result
            for future in futures:
                free(future)

    def _take_bytes(self, future: int) -> bytes:
        status = self.status_type()
        buffer = self.complete_buffer(future, ctypes.byref(status))
        self.check(status)
        return self.lift(buffer)

    def _take_iterator(self, future: int) -> Any:
        status = self.status_type()
        handle = self.complete_handle(future, ctypes.byref(status))
        self.check(status)
        return self.generated._UniffiFfiConverterTypeDbIterator.lift(handle)


# ---- encoding, see :mod:`.rows`
def encode_bytes(data: bytes) -> bytes:
    """Encode `data` with its length in front."""
    if len(data) > LARGEST:
        raise ValueError(f"{len(data)} bytes are too many for one value: at most {LARGEST}")
    return LENGTH.pack(len(data)) + data


def encode_range(start: bytes, end: bytes | None) -> bytes:
    """Encode ``start <= key < end``; an empty `start` and no `end` mean unbounded."""
    low = b"\1" + encode_bytes(start) if start else b"\0"
    high = b"\0" if end is None else b"\1" + encode_bytes(end)
    return low + b"\1" + high + b"\0"


def decode_optional_bytes(data: bytes) -> bytes | None:
    if data == b"\0":
        return None
    if data[:1] != b"\1" or LENGTH.unpack_from(data, 1)[0] != len(data) - 5:
        raise ValueError("an optional value from SlateDB does not decode")
    return data[5:]


# ---- the binding
class FastBatch(WriteBatch):
    """A batch that is filled through the native symbols.

    The call's status and the two argument structures are created once: building them costs as much as the native calls.
    """

    __slots__ = ("_handle", "_key", "_native", "_reference", "_status", "_value")

    def __init__(self, native: _Native) -> None:
        super().__init__(public().WriteBatch())
        self._native = native
        self._handle: int = self.raw._handle
        self._key, self._value = _ForeignBytes(), _ForeignBytes()
        self._reset_status()

    def put(self, key: bytes, value: bytes) -> None:
        self.put_all(((key, value),))

    def put_all(self, rows: Iterable[Pair]) -> None:
        native, handle, reference, first, second = self._native, self._handle, self._reference, self._key, self._value
        clone_batch, from_bytes, batch_put = native.clone_batch, native.from_bytes, native.batch_put
        count = total = 0
        for key, value in rows:
            size = len(value)
            if size > LARGEST:
                raise ValueError(f"{size} bytes are too many for one value: at most {LARGEST}")
            second.data = value = _PACK(size) + value  # the native call does not keep the bytes
            second.len = size + _PREFIX
            total += size
            size = len(key)
            first.data = key = _PACK(size) + key
            first.len = size + _PREFIX
            total += size
            count += 1
            batch_put(
                clone_batch(handle, reference), from_bytes(first, reference), from_bytes(second, reference), reference
            )
            if self._status.code:
                self._raise()
        self._count += count
        self.nbytes += total

    def delete(self, key: bytes) -> None:
        native, reference = self._native, self._reference
        self._key.data = encoded = encode_bytes(key)
        self._key.len = len(encoded)
        native.batch_delete(
            native.clone_batch(self._handle, reference), native.from_bytes(self._key, reference), reference
        )
        if self._status.code:
            self._raise()
        self._count += 1
        self.nbytes += len(key)

    def _reset_status(self) -> None:
        self._status = self._native.status_type()
        self._reference = ctypes.addressof(self._status)

    def _raise(self) -> None:
        status = self._status
        self._reset_status()
        self._native.check(status)


class FastBinding(SlateBinding):
    """The binding by the native symbols for calls with many bytes, and by the public interface for the others."""

    fast_path = True

    def __init__(self) -> None:
        super().__init__()
        self._native = _Native()

    def batch(self) -> WriteBatch:
        return FastBatch(self._native)

    async def get(self, db: Any, key: bytes) -> bytes | None:
        native = self._native
        lowered = native.lower(encode_bytes(key))
        future = native.get[_kind(db)](native.handle(db), lowered)
        return decode_optional_bytes(await native.call(future, native.buffer))

    async def get_many(self, db: Any, keys: Sequence[bytes]) -> list[bytes | None]:
        native = self._native
        start = native.get[_kind(db)]
        lowered = [native.lower(encode_bytes(key)) for key in keys]
        futures = [start(native.handle(db), key) for key in lowered]
        return list(map(decode_optional_bytes, await native.call_all(futures, native.buffer)))

    async def scan(
        self, db: Any, start: bytes, end: bytes | None, settings: ScanSettings, *, in_thread: bool = False
    ) -> Any:
        native = self._native
        return await native.call(self._begin_scan(db, start, end, settings), native.iterator, in_thread=in_thread)

    def _begin_scan(self, db: Any, start: bytes, end: bytes | None, settings: ScanSettings) -> int:
        """Return the native future of an iterator."""
        native = self._native
        keys = native.lower(encode_range(start, end))
        options = native.lower(_scan_options(native, settings))
        future: int = native.scan[_kind(db)](native.handle(db), keys, options)
        return future

    async def next_batch(self, iterator: Any, limit: int, *, in_thread: bool = False) -> list[Pair]:
        native = self._native
        future = native.next_batch(native.handle(iterator), limit)
        return decode_pairs(await native.call(future, native.buffer, rows=limit, in_thread=in_thread))

    async def next_rows(self, iterator: Any, limit: int) -> Rows:
        native = self._native
        future = native.next_batch(native.handle(iterator), limit)
        return decode_rows(await native.call(future, native.buffer, rows=limit))

    async def scan_many(self, db: Any, ranges: Sequence[Range], limit: int, settings: ScanSettings) -> list[list[Pair]]:
        native = self._native
        scans = [self._begin_scan(db, *bounds, settings) for bounds in ranges]
        iterators = await native.call_all(scans, native.iterator)
        futures = [native.next_batch(native.handle(iterator), limit) for iterator in iterators]
        return list(map(decode_pairs, await native.call_all(futures, native.buffer)))


def _kind(db: Any) -> str:
    return type(db).__name__.lower()


@functools.lru_cache(maxsize=64)
def _scan_options(native: _Native, settings: ScanSettings) -> bytes:
    """Encode `settings` as the generated module does."""
    converter = native.generated._UniffiFfiConverterTypeScanOptions
    buffer = converter.lower(stock_scan_options(settings))
    try:
        return ctypes.string_at(buffer.data, buffer.len)
    finally:
        buffer.free()
