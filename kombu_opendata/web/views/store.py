"""View of the broker and its store: size, maintenance, standbys, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from ...json_values import moment, with_times
from ..reports.wire_structs import WireStruct, copied
from ..request_context import AVisit
from ..verification import Verification
from .view import Views

VIEWS = Views("store")


@dataclass(frozen=True)
class StoreMaintenance:
    """Maintenance that keeps a store small and quick to open; see "status" in the command line's reference.

    Attributes:
        checkpoint_at, checkpoint_seconds: time and duration of the last checkpoint; None if it was before the broker's
            startup.
        tables: files of the store; ``unsorted_tables`` of them are not compacted yet.
        runs: sorted runs of tables; each read consults all of them.
        compactions: for each running compaction, the number of tables and runs that it merges.
        compacted_at: the time when the last ended compaction was planned; None if none is known.
        failed_compactions: the number of known compactions that failed.
        journal_limit_bytes: with a journal of this size, commits wait for the next checkpoint.
    """

    checkpoint_at: datetime | None
    checkpoint_seconds: float
    tables: int
    unsorted_tables: int
    runs: int
    compactions: tuple[int, ...]
    compacted_at: datetime | None
    failed_compactions: int
    journal_limit_bytes: int


@dataclass(frozen=True)
class InstanceStore:
    """The store of one instance.

    Attributes:
        size_bytes: the total size, as the limit counts it.
        live_bytes: tables in use.
        garbage_bytes: tables that were replaced and are not deleted yet.
        journal_bytes: the files of the journal.
        limit_bytes: the limit of the size; 0 means no limit.
        is_stuck: the store is too large, and there are no settled messages to remove.
        removed_early: settled messages that were removed because of the limit.
        measured_at: the time of the measurement.
        stalled_seconds: the time for which the store has accepted no writes; 0 if it accepts them.
        sessions: sessions of clients, including those that recently lost their connection.
        commits, published, delivered: counts since the broker's startup.
        dead_letters: dead letters that wait to be published.
        duties: the duties in their order, each with its ``name``. Its last run was at the time ``at``, for the client
            ``by``, and took ``seconds``. It was last requested at the time ``asked_at``, by the client ``asked_by``. A
            time is None if it was before the broker's startup.
        checkpoints: readers that keep replaced tables, such as a backup, by ``name``. ``expires_at`` is None for a
            checkpoint that never expires.
        verified: the result of the last verification by the web UI; None if there was none.
        metrics: all metrics of the broker, by their names.
    """

    instance: str
    size_bytes: int
    live_bytes: int
    garbage_bytes: int
    journal_bytes: int
    limit_bytes: int
    is_stuck: bool
    removed_early: int
    measured_at: datetime | None
    stalled_seconds: float
    sessions: int
    commits: int
    published: int
    delivered: int
    dead_letters: int
    upkeep: StoreMaintenance
    duties: tuple[dict[str, Any], ...]
    checkpoints: tuple[dict[str, Any], ...]
    verified: Verification | None
    metrics: dict[str, Any]


@dataclass(frozen=True)
class StoreReport:
    """The broker's process and its stores.

    Attributes:
        location: the store's URL, without secrets.
        state: ``active``, or another state of the broker; ``fault`` has the error.
        memory_bytes, memory_limit_bytes: memory of the process; 0 if unknown, or without a limit.
        memory_is_full: whether publishers wait because of it.
        standbys: the ``addresses`` of each standby, and the time when it connected (``since``).
    """

    location: str
    version: str
    pid: int
    state: str
    fault: str
    memory_bytes: int
    memory_limit_bytes: int
    memory_is_full: bool
    connections: int
    connections_limit: int
    standbys: tuple[dict[str, Any], ...]
    instances: tuple[Annotated[InstanceStore, WireStruct()], ...]


@VIEWS.view("/store", "store.html")
async def get_store(visit: AVisit) -> StoreReport:
    """Return sizes, maintenance, standbys and limits; requires the role monitor if the broker has users."""
    broker = visit.broker
    status = await broker.recent("status", 1.0, broker.client.status)
    memory = status.get("memory", {})
    older = {"state": "", "fault": "", "connections_limit": 0}  # an older broker does not send these
    return copied(
        StoreReport,
        older | status,
        location=status["store"],
        memory_bytes=memory.get("resident_bytes", 0),
        memory_limit_bytes=memory.get("limit_bytes", 0),
        memory_is_full=memory.get("is_full", False),
        standbys=tuple(
            {"addresses": standby["addresses"], "since": moment(standby["since_ms"])}
            for standby in status.get("standbys", ())
        ),
        instances=tuple(
            _instance(name, report, broker.verified.get(name)) for name, report in sorted(status["instances"].items())
        ),
    )


def _instance(name: str, report: Mapping[str, Any], verified: Verification | None) -> InstanceStore:
    disk = report["disk"]
    return copied(
        InstanceStore,
        {**disk, **report},
        instance=name,
        garbage_bytes=disk["waiting_bytes"],
        measured_at=moment(disk["at_ms"]),
        dead_letters=report["dead_letters"]["waiting"],
        upkeep=_upkeep(report),
        duties=tuple({"name": duty, **with_times(last)} for duty, last in report["maintenance"].items()),
        checkpoints=tuple(with_times(checkpoint) for checkpoint in disk["checkpoints"] if checkpoint["name"]),
        verified=verified,
        metrics=with_times({name: value for name, value in report.items() if name != "queues"}),
    )


def _upkeep(report: Mapping[str, Any]) -> StoreMaintenance:
    disk, checkpoint, compactions = report["disk"], report["checkpoint"], report["disk"]["compactions_ended"]
    return copied(
        StoreMaintenance,
        disk,
        checkpoint_at=moment(checkpoint["at_ms"]),
        checkpoint_seconds=checkpoint["seconds"],
        compactions=tuple(compaction["sources"] for compaction in disk["compactions_running"]),
        compacted_at=moment(max((compaction["planned_at_ms"] for compaction in compactions), default=0)),
        failed_compactions=sum(compaction["status"] == "failed" for compaction in compactions),
        journal_limit_bytes=report["journal_limit_bytes"],
    )
