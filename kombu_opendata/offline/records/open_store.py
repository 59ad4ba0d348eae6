"""Opening of a store for reading, which is repeated if its broker changes the store during the open."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ...errors import StoreChanged, StoreError
from ...storage.clock import Clock, SystemClock
from ...storage.slatedb.store_reads import ReadOnlyStore
from ..files.checkpoint_hold import Hold
from ..files.store_location import StoreLocation, find_store, running_broker
from ..findings import Finding, finding
from .offline_store import OfflineStore, is_damage

_TRIES = 5


async def open_store(
    folder_or_url: str | Path,
    instance: str | None = None,
    *,
    clock: Clock | None = None,
    tolerate_damage: bool = False,
    deadline_seconds: float = 30,
    who: str = "reader",
    holds_files: bool = True,
) -> OfflineStore:
    """Open an instance of a store for reading; the result is an asynchronous context manager.

    The reader sees one consistent state: the store after some commit of the broker. While a broker runs on a local
    folder, that is the last commit when the journal was read; on an object store, it is the last durable batch. If
    SlateDB shows a newer state while the store is being opened, it is opened again.

    With a running broker of the same user, and in a bucket, the reader creates a checkpoint in SlateDB's manifest. The
    checkpoint keeps the files that are read until the reader is closed, or has been dead for three minutes. If the
    reader may not write, ``unheld`` has the reason: the broker deletes files about 15 seconds after it has replaced
    them, and reads then fail with StoreChanged. The same can happen if a broker starts on a folder that had none.
    Nothing else is written to the store, and no lock is taken.

    Args:
        folder_or_url: a store's folder, ``opendata:///folder``, ``file:///folder``, or a bucket's URL (``s3://…``).
        instance: None for the only one, or for ``default``.
        who: a part of the checkpoint's name, which the broker's status shows.
        holds_files: create the checkpoint; False for a reader that is closed within seconds.
        tolerate_damage: open as much as possible, and list the errors in ``problems``. A store that does not answer is
            still an error.

    Raises:
        StoreError: there is no such store or instance (the text lists the existing ones), or it does not answer.
        StoreChanged: the broker wrote too fast for each of five attempts. Later reads may raise it, too.
        CorruptRecord: the store is damaged.
        UnsupportedFormat: this version of the package does not read the store's format.
        InvalidURL: the URL is not that of a store.
    """
    location = find_store(folder_or_url, instance)
    clock = clock or SystemClock()
    for _ in range(_TRIES - 1):
        with contextlib.suppress(StoreChanged):
            return await _open(location, clock, tolerate_damage, deadline_seconds, who, holds_files)
    return await _open(location, clock, tolerate_damage, deadline_seconds, who, holds_files, is_last_try=True)


async def _open(
    location: StoreLocation,
    clock: Clock,
    tolerant: bool,
    deadline_seconds: float,
    who: str,
    holds_files: bool,
    *,
    is_last_try: bool = False,
) -> OfflineStore:
    problems: list[Finding] = []
    reader = None
    has_writer = location.root is None or running_broker(location.root) is not None
    hold = Hold(location, who) if holds_files and has_writer else None
    if hold is not None:
        await hold.before()
    for skip_wal in (False, True):
        try:
            reader = await ReadOnlyStore.open(
                location.url, location.instance, frozen=True, skip_wal=skip_wal, deadline_seconds=deadline_seconds
            )
            break
        except StoreError as exc:
            if not tolerant or not is_damage(exc, location, running_broker(location.root)):
                raise
            problems.append(finding("slatedb-open", _opening(skip_wal, exc), file=str(location.database or "")))
    store = OfflineStore(location, reader, clock)
    store.problems, store.skipped_wal = problems, bool(problems)
    if reader is None:
        return store
    store.hold = hold
    try:
        if hold is not None and not await hold.take():
            raise StoreChanged(f"tables of {location} were replaced while it was opened")
        await store.load(tolerant=tolerant, is_last_try=is_last_try)
    except BaseException:
        await store.close()
        raise
    return store


def _opening(skip_wal: bool, exc: StoreError) -> str:
    return f"SlateDB can't open the database{' even without its WAL' if skip_wal else ''}: {exc.text}"
