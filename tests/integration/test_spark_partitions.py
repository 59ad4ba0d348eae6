"""Rows as tasks, through a real broker."""

from __future__ import annotations

import pickle

import pytest

from kombu_opendata.spark import PartitionSender

from ..support.kombu_client import connected


def test_every_row_becomes_a_task_that_a_worker_understands(broker_url: str) -> None:
    sender = pickle.loads(pickle.dumps(PartitionSender(broker_url, "proj.add", queue="sums", task_id="id")))

    sender([{"id": f"task-{n}", "x": n, "y": 2 * n} for n in range(3)])

    with connected(broker_url) as connection, connection.SimpleQueue("sums") as queue:
        messages = [queue.get(timeout=10) for _ in range(3)]
        for message in messages:
            message.ack()
    assert [message.headers["id"] for message in messages] == ["task-0", "task-1", "task-2"]
    assert {message.headers["task"] for message in messages} == {"proj.add"}
    assert [message.payload[1] for message in messages] == [{"x": n, "y": 2 * n} for n in range(3)]


def test_a_row_without_the_id_column_is_an_error(broker_url: str) -> None:
    with pytest.raises(KeyError, match="id"):
        PartitionSender(broker_url, "proj.add", task_id="id")([{"x": 1}])
