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

import asyncio
import ctypes
import functools
import importlib
import itertools
import struct
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kombu_opendata.storage.ffi import Batch, Binding, Pair, ScanSettings, public, stock_scan_options

_LENGTH = struct.Struct(">i")
_LARGEST = 2**31 - 1 - _LENGTH.size
_SEQ_AND_CREATED_BYTES = 16
_EXPIRES_BYTES = 8
_SYMBOL = "uniffi_slatedb_uniffi_fn_"
_RUNTIME = "ffi_slatedb_uniffi_"
#: rows that are read without a turn of the event loop; a point read and the start of a scan count as one
_ROWS_AT_ONCE = 4


class _RustBuffer(ctypes.Structure):
    _fields_ = (("capacity", ctypes.c_uint64), ("len", ctypes.c_uint64), ("data", ctypes.c_void_p))


class _ForeignBytes(ctypes.Structure):
    # c_char_p, where the generated code has POINTER(c_char): it takes a bytes object as it is.
    _fields_ = (("len", ctypes.c_int32), ("data", ctypes.c_char_p))


class _Native:
    """The native functions with argument types that take bytes cheaply.

    A library object of our own keeps these types apart from the generated module's. Its calls return at once, so they
    keep the interpreter lock. Polls and the end of a future run SlateDB's code, or wait for it, and call back: they are
    the generated module's own, which let go of the lock, and must be.
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
        self.complete_buffer = bind(_RUNTIME + "rust_future_complete_rust_buffer", buffer, u64, status)
        self.complete_handle = bind(_RUNTIME + "rust_future_complete_u64", u64, u64, status)
        self.clone_batch = bind(_SYMBOL + "clone_writebatch", u64, u64, status)
        self.batch_put = bind(_SYMBOL + "method_writebatch_put", None, u64, buffer, buffer, status)
        self.batch_delete = bind(_SYMBOL + "method_writebatch_delete", None, u64, buffer, status)
        shared = self.generated._UniffiLib  # these let go of the interpreter lock
        self.poll_buffer = shared.ffi_slatedb_uniffi_rust_future_poll_rust_buffer
        self.poll_handle = shared.ffi_slatedb_uniffi_rust_future_poll_u64
        self.free_buffer_future = shared.ffi_slatedb_uniffi_rust_future_free_rust_buffer
        self.free_handle_future = shared.ffi_slatedb_uniffi_rust_future_free_u64
        self._polls = _Polls(self.generated)
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

    async def call(self, future: int, *, rows: int = 1, in_thread: bool = False) -> bytes:
        """Wait for a native future that gives a buffer, of about so many rows."""
        try:
            cancelled = await self._polls.ready(future, self.poll_buffer, rows, in_thread=in_thread)
            status = self.status_type()
            buffer = self.complete_buffer(future, ctypes.byref(status))
            self.check(status)
            found = self.lift(buffer)
        finally:
            self.free_buffer_future(future)
        if cancelled is not None:
            raise cancelled  # only now: nobody else would free the buffer
        return found

    async def call_for_iterator(self, future: int) -> Any:
        """Wait for a native future that gives a scan iterator."""
        try:
            await self._polls.ready(future, self.poll_handle, 1)
            status = self.status_type()
            handle = self.complete_handle(future, ctypes.byref(status))
            self.check(status)
            return self.generated._UniffiFfiConverterTypeDbIterator.lift(handle)
        finally:
            self.free_handle_future(future)


class _Wait:
    """One poll of a native future: what it said, and who waits for that, if it did not say it at once."""

    __slots__ = ("code", "future")

    def __init__(self) -> None:
        self.code = -1
        self.future: asyncio.Future[None] | None = None


class _Bell:
    """Wakes futures of one event loop from any thread, many with one wake-up of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # it is the key of the weak dictionary that has this
        self._woken: deque[asyncio.Future[None]] = deque()
        self._rings = False

    def ring(self, future: asyncio.Future[None]) -> None:
        self._woken.append(future)
        if not self._rings:
            self._rings = True
            loop = self._loop()
            try:
                if loop is not None:
                    loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # it is closed: nobody waits any more
                self._woken.clear()

    def _answer(self) -> None:
        self._rings = False  # first: what is appended from here on rings again, or is seen below
        woken = self._woken
        while woken:
            future = woken.popleft()
            if not future.done():
                future.set_result(None)


class _Polls:
    """Polls native futures until they are ready.

    A future runs in the thread that polls it. Where everything is at hand, it is ready at the first poll and the
    callback comes from within it: the generated module takes a turn of the event loop even then. Else the callback
    comes from a thread of the runtime, and the future is to be polled again.
    """

    def __init__(self, generated: Any) -> None:
        self._ready_code = generated._UNIFFI_RUST_FUTURE_POLL_READY
        self._waits: dict[int, _Wait] = {}
        self._numbers = itertools.count(1)
        self._bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bell] = weakref.WeakKeyDictionary()
        self._callback = generated._UNIFFI_RUST_FUTURE_CONTINUATION_CALLBACK(self._polled)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="slatedb-read")
        self._since_turn = 0  # rows that were read without a turn of the event loop in between

    async def ready(
        self, future: int, poll: Any, rows: int, *, in_thread: bool = False
    ) -> asyncio.CancelledError | None:
        """Wait until the native future is ready. Others get their turn, even if one after another is ready at once.

        Args:
            rows: about how many rows the future gives.
            in_thread: poll it in a thread.

        Returns:
            That the caller was cancelled when it had become ready already, to be raised when the result is taken.
        """
        self._since_turn += rows
        if self._since_turn > _ROWS_AT_ONCE:
            self._since_turn = 0
            await asyncio.sleep(0)
        while True:
            number, wait = next(self._numbers), _Wait()
            self._waits[number] = wait
            cancelled = None
            if in_thread:
                loop = asyncio.get_running_loop()
                cancelled = await _ended(loop.run_in_executor(self._thread, poll, future, self._callback, number))
            else:
                poll(future, self._callback, number)
            if wait.code == self._ready_code:
                return cancelled
            if cancelled is not None:
                raise cancelled
            if wait.code < 0:
                await self._woken(wait)

    async def _woken(self, wait: _Wait) -> None:
        loop = asyncio.get_running_loop()
        if loop not in self._bells:
            self._bells[loop] = _Bell(loop)
        wait.future = loop.create_future()
        if wait.code < 0:  # asked again: it sets the code first, and then looks for the future
            await wait.future

    def _polled(self, number: int, code: int) -> None:
        wait = self._waits.pop(number)
        wait.code = code
        future = wait.future
        if future is not None:
            self._bells[future.get_loop()].ring(future)


async def _ended(job: asyncio.Future[None]) -> asyncio.CancelledError | None:
    """Wait for what a thread does, even when cancelled, which is returned: it uses what the caller frees then."""
    cancelled: asyncio.CancelledError | None = None
    while not job.done():
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError as exc:
            cancelled = exc
    job.result()
    return cancelled


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
        return decode_optional_bytes(await native.call(future))

    async def scan(self, db: Any, start: bytes, end: bytes | None, settings: ScanSettings) -> Any:
        native = self._native
        keys = native.lower(encode_range(start, end))
        options = native.lower(_scan_options(native, settings))
        future = native.scan[_kind(db)](db._uniffi_clone_handle(), keys, options)
        return await native.call_for_iterator(future)

    async def next_batch(self, iterator: Any, limit: int, *, in_thread: bool = False) -> list[Pair]:
        native = self._native
        start = native.generated._UniffiLib.uniffi_slatedb_uniffi_fn_method_dbiterator_next_batch
        future = start(iterator._uniffi_clone_handle(), limit)
        return decode_pairs(await native.call(future, rows=limit, in_thread=in_thread))


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
