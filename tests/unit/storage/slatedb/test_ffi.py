"""The two ways into the SlateDB binding do the same."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Any

import pytest

from kombu_opendata.storage.slatedb import ffi, ffi_choice, ffi_native
from kombu_opendata.storage.slatedb.rows import Pair, Rows
from tests.support.waiting import turns

VALUES = [b"", b"\0", b"x" * 50, bytes(range(256)) * 106, os.urandom(70_000)]


async def open_memory() -> Any:
    u = ffi.public()
    return await u.DbBuilder("db", u.ObjectStore.resolve("memory:///")).build()


def test_the_fast_path_is_chosen_once() -> None:
    async def main() -> None:
        choice = ffi_choice.BindingChoice()
        binding = await choice.select()
        assert binding.fast_path
        assert binding.reason == ""
        assert await choice.select() is binding
        assert (await ffi_choice.select()).fast_path

    asyncio.run(main())


@pytest.mark.parametrize("writer", [ffi.SlateBinding, ffi_native.FastBinding])
@pytest.mark.parametrize("reader", [ffi.SlateBinding, ffi_native.FastBinding])
def test_each_reads_what_each_wrote(writer: Any, reader: Any) -> None:
    async def main() -> None:
        db = await open_memory()
        batch = writer().batch()
        expected = [(b"key-%d\xff\0" % i, value) for i, value in enumerate(VALUES)]
        for key, value in expected:
            batch.put(key, value)
        batch.put(b"key-x", b"1")
        batch.delete(b"key-x")
        assert len(batch) == len(VALUES) + 2
        assert batch.nbytes == sum(len(k) + len(v) for k, v in expected) + 5 + 1 + 5
        await db.write(batch.raw)
        assert [await reader().get(db, key) for key, _ in expected] == VALUES
        assert await reader().get(db, b"key-x") is None
        for descending in (False, True):
            iterator = await reader().scan(db, b"", None, ffi.ScanSettings(descending=descending))
            pairs = await reader().next_batch(iterator, 3) + await reader().next_batch(iterator, 3)
            assert pairs == sorted(expected, reverse=descending)
        iterator = await reader().scan(db, expected[1][0], expected[3][0], ffi.ScanSettings())
        assert await reader().next_batch(iterator, 9) == expected[1:3]
        iterator = await reader().scan(db, b"", None, ffi.ScanSettings())
        rows = [await reader().next_rows(iterator, 3), await reader().next_rows(iterator, 3)]
        assert [len(one) for one in rows] == [3, 2]
        assert rows[0].pairs() + rows[1].pairs() == expected
        await db.shutdown()

    asyncio.run(main())


def test_rows_with_an_expiry_decode() -> None:
    async def main() -> None:
        u, db = ffi.public(), await open_memory()
        options = u.PutOptions(ttl=u.Ttl.EXPIRE_AFTER_MILLIS(3_600_000))
        await db.put_with_options(b"a", b"1", options, u.WriteOptions())
        await db.put(b"b", b"2")
        fast = ffi_native.FastBinding()
        iterator = await fast.scan(db, b"", None, ffi.ScanSettings())
        assert await fast.next_batch(iterator, 9) == [(b"a", b"1"), (b"b", b"2")]
        iterator = await fast.scan(db, b"", None, ffi.ScanSettings())
        assert (await fast.next_rows(iterator, 9)).pairs() == [(b"a", b"1"), (b"b", b"2")]
        await db.shutdown()

    asyncio.run(main())


def test_the_native_errors_are_raised() -> None:
    async def main() -> None:
        u, db = ffi.public(), await open_memory()
        batch = ffi_native.FastBinding().batch()
        batch.put(b"a", b"1")
        await db.write(batch.raw)
        with pytest.raises(u.Error.Invalid):
            batch.put(b"b", b"2")
        with pytest.raises(u.Error.Invalid):
            batch.delete(b"b")
        assert len(batch) == 1
        await db.shutdown()
        with pytest.raises(u.Error.Closed):
            await ffi_native.FastBinding().get(db, b"a")

    asyncio.run(main())


def test_a_value_that_the_length_field_cannot_hold_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(ValueError, match="too many"):
        ffi_native.encode_bytes(Huge())


@pytest.mark.parametrize("data", [b"\2", b"\1\0\0\0\5abc"])
def test_a_damaged_optional_value_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="does not decode"):
        ffi_native.decode_optional_bytes(data)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_nothing_leaks() -> None:
    async def main() -> None:
        db, fast, value = await open_memory(), ffi_native.FastBinding(), b"v" * 60_000
        await db.put(b"k", value)

        async def round_trip() -> None:
            batch = fast.batch()
            for _ in range(20):
                batch.put(b"k", value)
            for _ in range(20):
                await fast.get(db, b"k")
            await fast.next_batch(await fast.scan(db, b"", None, ffi.ScanSettings()), 9)
            await fast.get_many(db, [b"k"] * 20)
            await fast.scan_many(db, [(b"", None)] * 20, 9, ffi.ScanSettings())

        for _ in range(20):
            await round_trip()
        before = resident_bytes()
        for _ in range(100):
            await round_trip()  # 480 MB pass the border
        assert resident_bytes() - before < 20 << 20
        await db.shutdown()

    asyncio.run(main())


def test_nothing_leaks_of_reads_that_are_cancelled() -> None:
    async def main() -> None:
        db, fast = await open_memory(), ffi_native.FastBinding()
        for number in range(20):
            await db.put(b"%d" % number, b"v" * 60_000)

        async def cancelled() -> None:
            iterator = await fast.scan(db, b"", None, ffi.ScanSettings())
            reading = asyncio.create_task(fast.next_batch(iterator, 20, in_thread=True))
            await turns(2)  # it is in the thread now
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

        for _ in range(20):
            await cancelled()
        before = resident_bytes()
        for _ in range(200):
            await cancelled()  # 240 MB are read
        assert resident_bytes() - before < 80 << 20
        await db.shutdown()

    asyncio.run(main())


@pytest.mark.parametrize(("many", "count"), [("get_many", 1), ("get_many", 4), ("scan_many", 2), ("scan_many", 7)])
def test_nothing_leaks_of_many_reads_that_are_cancelled(many: str, count: int) -> None:
    async def main() -> None:
        db, fast = await open_memory(), ffi_native.FastBinding()
        for number in range(20):
            await db.put(b"%d" % number, b"v" * 60_000)

        async def cancelled() -> bool:
            keys = [b"%d" % number for number in range(20)]
            if many == "get_many":
                reading: asyncio.Task[Any] = asyncio.create_task(fast.get_many(db, keys))
            else:
                ranges: list[ffi.Range] = [(key, None) for key in keys]
                reading = asyncio.create_task(fast.scan_many(db, ranges, 1, ffi.ScanSettings()))
            await turns(count)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            return reading.cancelled()

        found = [await cancelled() for _ in range(20)]
        before = resident_bytes()
        found += [await cancelled() for _ in range(200)]  # up to 240 MB are read
        assert sum(found) > 150
        assert resident_bytes() - before < 60 << 20
        await db.shutdown()

    asyncio.run(main())


def test_many_reads_wait_together() -> None:
    """Futures that are polled again and again get on side by side, not one after the other."""
    polled: list[int] = []
    left = dict.fromkeys(range(5), 3)

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        native = ffi_native.FastBinding()._native
        polls = native._polls

        def poll(future: int, callback: Any, number: int) -> None:
            polled.append(future)
            left[future] -= 1
            if left[future]:
                loop.call_soon(polls._polled, number, 1)  # wakes it: it is to be polled again
            else:
                polls._polled(number, polls._ready_code)

        kind = ffi_native.FutureKind(poll, lambda future: 10 * future, lambda _future: None)
        return await native.call_all(range(5), kind)

    assert asyncio.run(main()) == [0, 10, 20, 30, 40]
    assert len(polled) == 15
    last_of_first = len(polled) - 1 - polled[::-1].index(0)
    assert polled[:last_of_first].count(1) == 2, "the second goes on before the first has ended"


async def _disagree(fast: ffi.SlateBinding) -> None:
    raise ffi_choice.SelfCheckFailed("made to fail")


def test_a_failed_self_check_falls_back_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        choice = ffi_choice.BindingChoice(check=_disagree)
        binding = await choice.select()
        assert await choice.select() is binding
        assert not binding.fast_path
        assert "made to fail" in binding.reason
        db, batch = await open_memory(), binding.batch()
        batch.put(b"a", b"1")
        await db.write(batch.raw)
        assert await binding.get(db, b"a") == b"1"
        await db.shutdown()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert [r.levelname for r in caplog.records if "fast path" in r.getMessage()] == ["WARNING"]


def test_another_version_of_slatedb_falls_back() -> None:
    binding = asyncio.run(ffi_choice.BindingChoice("0.99").select())
    assert not binding.fast_path
    assert "0.99" in binding.reason


@pytest.mark.parametrize("fault", ["value", "delete", "get", "scan", "rows"])
def test_the_self_check_sees_each_fault(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    binding = ffi_native.FastBinding()
    put, get, next_batch = ffi_native.FastBatch.put, binding.get, binding.next_batch
    next_rows = binding.next_rows

    async def wrong_get(db: Any, key: bytes) -> bytes | None:
        value = await get(db, key)
        return value[:-1] if value else value

    async def wrong_next(iterator: Any, limit: int, **options: Any) -> list[Pair]:
        return (await next_batch(iterator, limit, **options))[::-1]

    async def wrong_rows(iterator: Any, limit: int) -> Rows:
        rows = await next_rows(iterator, limit)
        return Rows(rows.data, [(run[0] - 1, *run[1:]) for run in rows.runs], len(rows))

    match fault:
        case "value":
            monkeypatch.setattr(ffi_native.FastBatch, "put", lambda self, k, v: put(self, k, v[:65_535]))
        case "delete":
            monkeypatch.setattr(ffi_native.FastBatch, "delete", lambda self, k: None)
        case "get":
            monkeypatch.setattr(binding, "get", wrong_get)
        case "rows":
            monkeypatch.setattr(binding, "next_rows", wrong_rows)
        case _:
            monkeypatch.setattr(binding, "next_batch", wrong_next)
    with pytest.raises(ffi_choice.SelfCheckFailed):
        asyncio.run(ffi_choice.self_check(binding))
