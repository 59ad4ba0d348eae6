"""The broker and its store: size, upkeep, standbys, limits."""

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
        at: its last run, by whom, and how long it took; None if it has not run since the broker's start.
        asked_at: when a client last asked for it, and who.
    """

    name: str
    at: datetime | None
    by: str
    seconds: float
    asked_at: datetime | None
    asked_by: str


@dataclass(frozen=True)
class CheckpointRow:
    """A reader that keeps replaced tables, such as a backup. Its time is None if it keeps them for ever."""

    name: str
    expires_at: datetime | None


@dataclass(frozen=True)
class StoreMaintenance:
    """What keeps a store small and quick to open; see "status" in the command line's reference.

    Attributes:
        checkpoint_at, checkpoint_seconds: when memory was last written to the store, and how long that took; None if
            that was before the broker's start.
        tables: files of the store; ``unsorted_tables`` of them are not compacted yet.
        runs: sorted runs of tables: each read looks into all of them.
        compactions: those that go on: how many tables and runs each merges.
        compacted_at: when the last one was planned that has ended; None if none is known.
        failed_compactions: of those that are known.
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
        size_bytes: everything, as the limit counts it.
        live_bytes: tables in use.
        garbage_bytes: tables that were replaced and are not deleted yet.
        journal_bytes: the files of the journal.
        limit_bytes: how large it may be; 0 means no limit.
        is_stuck: it is too large, and there are no settled messages to remove.
        removed_early: settled messages that were removed because of the limit.
        measured_at: when the sizes were taken.
        stalled_seconds: for how long the store has taken no writes; 0 if it does.
        sessions: of clients, also those that lost their connection a moment ago.
        commits, published, delivered: since the broker's start.
        dead_letters: dead letters that wait to be published.
        duties: in their order.
        verified: what the last verification by this page found; None if there was none.
        figures: all figures that the broker gives, by their names.
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
    """A broker that waits to take over, and since when it has been connected."""

    addresses: tuple[str, ...]
    since: datetime | None


@dataclass(frozen=True)
class StoreReport:
    """The broker's process and its stores.

    Attributes:
        location: the store's URL, without secrets.
        state: ``active``, or what else the broker says of itself; ``fault`` says what is wrong.
        memory_bytes, memory_limit_bytes: of the process; 0 if they are not known, or there is no limit.
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
    """The broker's process and its stores."""
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
        tuple(StandbyRow(tuple(one["addresses"]), moment(one["since_ms"])) for one in report.get("standbys", ())),
        tuple(_instance(name, one, broker.verified.get(name)) for name, one in sorted(report["instances"].items())),
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
        tuple(CheckpointRow(one["name"], moment(one["expires_at_ms"])) for one in disk["checkpoints"] if one["name"]),
        verified,
        with_times({figure: value for figure, value in report.items() if figure != "queues"}),
    )


def _upkeep(report: Mapping[str, Any]) -> StoreMaintenance:
    disk, checkpoint, ended = report["disk"], report["checkpoint"], report["disk"]["compactions_ended"]
    return StoreMaintenance(
        moment(checkpoint["at_ms"]),
        checkpoint["seconds"],
        disk["tables"],
        disk["unsorted_tables"],
        disk["runs"],
        tuple(one["sources"] for one in disk["compactions_running"]),
        moment(max((one["planned_at_ms"] for one in ended), default=0)),
        sum(one["status"] == "failed" for one in ended),
        report["journal_limit_bytes"],
    )


def _duty(name: str, last: Mapping[str, Any]) -> Duty:
    asked = moment(last["asked_at_ms"]), last["asked_by"]
    return Duty(name, moment(last["at_ms"]), last["by"], last["seconds"], *asked)
