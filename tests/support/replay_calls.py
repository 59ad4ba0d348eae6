"""Calls about replays, redrives and settled messages, over a connection that a test has."""

from __future__ import annotations

from typing import Any

from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol.log_position import wire_position
from kombu_opendata.protocol.messages import Cursors, DeleteSettled, Redrive, Redriven, Replay
from kombu_opendata.queue_client.checks import Point


def start_replay(
    connection: BrokerConnection, queue: str, start: Point, until: Point = "now", *, selector: str = ""
) -> Any:
    return connection.call(Replay(0, queue, wire_position(start), wire_position(until), selector)).cursor


def stop_replay(connection: BrokerConnection, queue: str) -> Any:
    return connection.call(Replay(0, queue, "now", stop=True)).cursor


def progress(connection: BrokerConnection, queues: Any = ()) -> list[dict[str, Any]]:
    cursors: list[dict[str, Any]] = connection.call(Cursors(0, list(queues))).cursors
    return cursors


def redrive(
    connection: BrokerConnection,
    queue: str,
    target: str = "",
    *,
    selector: str = "",
    ids: Any = None,
    limit: int = 0,
    timeout: float | None = None,
) -> Redriven:
    chosen = None if ids is None else list(ids)
    answer: Redriven = connection.call(Redrive(0, queue, target, selector, chosen, limit), timeout)
    return answer


def delete_settled(
    connection: BrokerConnection,
    queue: str,
    which: str,
    *,
    older_than: float | None = None,
    ids: Any = None,
    all: bool = False,
) -> int:
    age_ms = -1 if older_than is None else int(1000 * older_than)
    chosen = None if ids is None else list(ids)
    return int(connection.call(DeleteSettled(0, queue, which, age_ms, chosen, all)).count)
