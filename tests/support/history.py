"""History of an engine in small: parts, runs and looks of a few rows, so that a short test meets all of them."""

from __future__ import annotations

from typing import Any

from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.history import query
from kombu_opendata.storage.records import keys
from kombu_opendata.storage.records.keys import RecordKind

from .engine import SMALL_BUCKETS, sized

KINDS = [kind for kind in RecordKind if kind.name.startswith("HISTORY_")]


#: parts, runs and batches of a few rows
TINY = sized(SMALL_BUCKETS, index_part_rows=24, index_merge_runs=2, index_rare=2, history_batch=8, failure_reads=3)


async def records(engine: Engine) -> dict[RecordKind, int]:
    """How many records of each kind of history the store has."""
    return {kind: len(await engine.store.scan(*keys.kind_range(kind))) for kind in KINDS}


async def message_ids(engine: Engine, **filters: Any) -> list[int]:
    """The ids of all messages that pass, the oldest first."""
    checked = query.check_filters(**filters)
    paging = query.check_paging(query.MESSAGES, checked, order="asc", limit=1000, after=None, before=None)
    return [one.id for one in (await engine.history.list_messages(checked, paging)).items]


async def attempts(engine: Engine, **filters: Any) -> list[tuple[int, int, str]]:
    """Number, message id and outcome of all attempts that pass, the oldest first."""
    checked = query.check_filters(**filters)
    paging = query.check_paging(query.ATTEMPTS, checked, order="asc", limit=1000, after=None, before=None)
    page = await engine.history.list_attempts(checked, paging)
    return [(query.attempt_number(one.id), one.message_id, one.outcome) for one in page.items]


async def index_all(engine: Engine) -> None:
    """Index, write and merge everything that there is."""
    await engine.history.indexer.catch_up()
    while await engine.history.indexer.work(1.0):
        await engine.commits.checkpoint()
    await engine.commits.checkpoint()
    while await engine.history.sweeper.merge_some():
        pass
    await engine.commits.checkpoint()
