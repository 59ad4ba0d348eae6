"""Rows as tasks, sent from the executors: ``df.foreachPartition(PartitionSender(url, "app.add"))``.

Each row is one task, published and durable before the next. Spark may run a partition twice (a retry, speculation);
then its tasks are sent twice, with the same task ids where ``task_id`` names a column, so that a task can tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class PartitionSender:
    """Sends every row as a task whose keyword arguments are the row's columns. Picklable, so Spark can ship it.

    Args:
        broker_url: a broker that the executors reach: ``opendata://host:port/…``, or a folder on one machine.
        task: the task's name.
        queue: the queue to send to.
        task_id: a column that holds the task's id; it is not passed on as an argument. Without it ids are random.
    """

    def __init__(self, broker_url: str, task: str, *, queue: str = "celery", task_id: str | None = None) -> None:
        self.broker_url = broker_url
        self.task = task
        self.queue = queue
        self.task_id = task_id

    def __call__(self, rows: Iterable[Any]) -> None:
        """Send the rows; each has ``asDict`` as pyspark's Row, or is a mapping.

        Raises:
            KeyError: a row has no column of the name ``task_id``.
            OpenDataError: the broker refused a task or could not be reached; those before it were sent.
        """
        from celery import Celery

        import kombu_opendata  # noqa: F401 - makes the broker URL known

        app = Celery(broker=self.broker_url, set_as_current=False)
        try:
            with app.producer_or_acquire() as producer:
                for row in rows:
                    arguments = row.asDict(recursive=True) if hasattr(row, "asDict") else dict(row)
                    id = str(arguments.pop(self.task_id)) if self.task_id is not None else None
                    app.send_task(self.task, kwargs=arguments, queue=self.queue, task_id=id, producer=producer)
        finally:
            app.close()
