"""Report of the broker and its store: size, maintenance, standbys, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...json_values import with_times
from ...queue_client.message_models import moment
from ..brokers import UserBroker
from ..verification import Verification


@dataclass(frozen=True)
class Duty:
    """A maintenance duty.

    Attributes:
        at: the time of its last run, with the client and the duration; None if it has not run since the broker's
            startup.
        asked_at: the time of the last request for it, with the client.
    """

    name: str
    at: datetime | None
    by: str
    seconds: float
    asked_at: datetime | None
    asked_by: str


@dataclass(frozen=True)
class CheckpointRow:
    """A reader that keeps replaced tables, such as a backup. Its time is None if it never expires."""

    name: str
    expires_at: datetime | None


@dataclass(frozen=True)
class StoreMaintenance:
    """Maintenance that keeps a store small and quick to open; see "status" in the command line's reference.

    Attributes:
        checkpoint_at, checkpoint_seconds: time and duration of the last checkpoint; None if it was before the broker's
            startup.
        tables: files of the store; ``unsorted_tables`` of them are not compacted yet.
        runs: sorted runs of tables; each read consults all of them.
        compactions: running compactions: the number of tables and runs that each merges.
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
        duties: the duties in their order.
        verified: the result of the last verification by the web UI; None if there was none.
        figures: all metrics of the broker, by their names.
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
    duties: tuple[Duty, ...]
    checkpoints: tuple[CheckpointRow, ...]
    verified: Verification | None
    figures: dict[str, Any]


@dataclass(frozen=True)
class StandbyRow:
    """A standby, and the time when it connected."""

    addresses: tuple[str, ...]
    since: datetime | None


@dataclass(frozen=True)
class StoreReport:
    """The broker's process and its stores.

    Attributes:
        location: the store's URL, without secrets.
        state: ``active``, or another state of the broker; ``fault`` has the error.
        memory_bytes, memory_limit_bytes: memory of the process; 0 if unknown, or without a limit.
        memory_is_full: whether publishers wait because of it.
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
    standbys: tuple[StandbyRow, ...]
    instances: tuple[InstanceStore, ...]


async def store(broker: UserBroker) -> StoreReport:
    """Return the broker's process and its stores."""
    report = await broker.recent("status", 1.0, broker.client.status)
    memory = report.get("memory", {})
    return StoreReport(
        report["store"],
        report["version"],
        report["pid"],
        report.get("state", ""),
        report.get("fault", ""),
        memory.get("resident_bytes", 0),
        memory.get("limit_bytes", 0),
        memory.get("is_full", False),
        report["connections"],
        report.get("connections_limit", 0),
        tuple(StandbyRow(tuple(entry["addresses"]), moment(entry["since_ms"])) for entry in report.get("standbys", ())),
        tuple(_instance(name, entry, broker.verified.get(name)) for name, entry in sorted(report["instances"].items())),
    )


def _instance(name: str, report: Mapping[str, Any], verified: Verification | None) -> InstanceStore:
    disk = report["disk"]
    return InstanceStore(
        name,
        disk["size_bytes"],
        disk["live_bytes"],
        disk["waiting_bytes"],
        report["journal_bytes"],
        disk["limit_bytes"],
        disk["is_stuck"],
        disk["removed_early"],
        moment(disk["at_ms"]),
        report["stalled_seconds"],
        report["sessions"],
        report["commits"],
        report["published"],
        report["delivered"],
        report["dead_letters"]["waiting"],
        _upkeep(report),
        tuple(_duty(duty, last) for duty, last in report["maintenance"].items()),
        tuple(
            CheckpointRow(entry["name"], moment(entry["expires_at_ms"]))
            for entry in disk["checkpoints"]
            if entry["name"]
        ),
        verified,
        with_times({figure: value for figure, value in report.items() if figure != "queues"}),
    )


def _upkeep(report: Mapping[str, Any]) -> StoreMaintenance:
    disk, checkpoint, compactions = report["disk"], report["checkpoint"], report["disk"]["compactions_ended"]
    return StoreMaintenance(
        moment(checkpoint["at_ms"]),
        checkpoint["seconds"],
        disk["tables"],
        disk["unsorted_tables"],
        disk["runs"],
        tuple(compaction["sources"] for compaction in disk["compactions_running"]),
        moment(max((compaction["planned_at_ms"] for compaction in compactions), default=0)),
        sum(compaction["status"] == "failed" for compaction in compactions),
        report["journal_limit_bytes"],
    )


def _duty(name: str, last: Mapping[str, Any]) -> Duty:
    request = moment(last["asked_at_ms"]), last["asked_by"]
    return Duty(name, moment(last["at_ms"]), last["by"], last["seconds"], *request)
