"""The choice of a process between the two ways into the SlateDB binding: the fast one, if it is safe to use.

The fast path relies on the internals of the generated code. So it is used only with the minor version for which it was
written, and only after a self-check in this process.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from .ffi import Range, ScanSettings, SlateBinding, public

log = logging.getLogger(__name__)

#: the SlateDB version for which the fast path was written, without its last part
FAST_PATH_VERSION = "0.17"


class SelfCheckFailed(Exception):
    """The fast path can't be used, or it disagrees with the public interface."""


@functools.cache
def _samples() -> dict[bytes, bytes]:
    """Return keys and values with every byte value and each length class."""
    every_byte = bytes(range(256))
    values = (b"", b"\0", every_byte, every_byte * 110, every_byte * 300)
    return {b"\x01\0\xff" + bytes((i,)): value for i, value in enumerate(values)}


@functools.cache
def _alike() -> dict[bytes, bytes]:
    """Return rows that are mostly alike: one has a longer key and a shorter value, one a longer value."""
    rows = {b"\x02alike%02d" % i: b"value-%02d" % i for i in range(40)}
    return rows | {b"\x02alike20": b"longer", b"\x02alike201": b"shorter", b"\x02alike30": b"\0" * 264}


async def self_check(fast: SlateBinding) -> None:
    """Write with `fast` and read with the public interface, and vice versa.

    Raises:
        SelfCheckFailed: the values that were read are not those that were written.
    """
    u, stock = public(), SlateBinding()
    db = await u.DbBuilder("self-check", u.ObjectStore.resolve("memory:///")).build()
    try:
        await _check_writes(fast, stock, db)
        await _check_reads(fast, db)
    finally:
        await db.shutdown()


async def _check_writes(fast: SlateBinding, stock: SlateBinding, db: Any) -> None:
    samples = _samples()
    batch = fast.batch()
    for key, value in (samples | _alike()).items():
        batch.put(key, value)
    batch.put(b"gone", b"1")
    batch.delete(b"gone")
    await db.write(batch.raw)
    for key, value in samples.items():
        if await stock.get(db, key) != value:
            raise SelfCheckFailed(f"a value of {len(value)} bytes was not written as given")
    if await stock.get(db, b"gone") is not None:
        raise SelfCheckFailed("a delete was not applied")


async def _check_reads(fast: SlateBinding, db: Any) -> None:
    expected = sorted(_samples().items())
    for key, value in [*expected, (b"absent", None)]:
        if await fast.get(db, key) != value:
            raise SelfCheckFailed(f"the value of {key!r} was not read as stored")
    if await fast.get_many(db, [b"absent", *dict(expected)]) != [None, *dict(expected).values()]:
        raise SelfCheckFailed("values that are read together are not those that are stored")
    ranges: list[Range] = [(expected[2][0], None), (b"absent", b"absent\0"), (b"", expected[1][0])]
    if await fast.scan_many(db, ranges, 2, ScanSettings()) != [expected[2:4], [], expected[:1]]:
        raise SelfCheckFailed("scans that run together do not give the stored pairs")
    for descending in (False, True):
        settings = ScanSettings(descending=descending)
        iterator = await fast.scan(db, expected[1][0], expected[4][0], settings, in_thread=descending)
        pairs = await fast.next_batch(iterator, 2) + await fast.next_batch(iterator, 9, in_thread=descending)
        if pairs != sorted(expected[1:4], reverse=descending):
            raise SelfCheckFailed("a scan does not give the stored pairs")
    iterator = await fast.scan(db, b"", None, ScanSettings())
    rows = await fast.next_rows(iterator, 30), await fast.next_rows(iterator, 99)
    if rows[0].pairs() + rows[1].pairs() != sorted((_samples() | _alike()).items()):
        raise SelfCheckFailed("a scan in one piece does not give the stored pairs")


class BindingChoice:
    """The choice, which the first call of :meth:`select` makes."""

    def __init__(
        self,
        fast_path_version: str = FAST_PATH_VERSION,
        check: Callable[[SlateBinding], Awaitable[None]] = self_check,
    ) -> None:
        self._fast_path_version, self._check = fast_path_version, check
        self._chosen: SlateBinding | None = None

    async def select(self) -> SlateBinding:
        """Return the fast binding if its self-check passes, else the stock one."""
        if self._chosen is None:
            self._chosen = await self._choose()
        return self._chosen

    async def _choose(self) -> SlateBinding:
        try:
            installed = version("slatedb")
            if not installed.startswith(self._fast_path_version + "."):
                raise SelfCheckFailed(f"it is written for slatedb {self._fast_path_version}, this is {installed}")
            from .ffi_native import FastBinding

            fast = FastBinding()
            await self._check(fast)
        except Exception as error:  # after any failure here, the public interface still works
            reason = f"{type(error).__name__}: {error}"
            log.warning("The fast path into SlateDB is off, so the broker is much slower (%s)", reason)
            return SlateBinding(reason)
        return fast


#: the choice of this process
select = BindingChoice().select
