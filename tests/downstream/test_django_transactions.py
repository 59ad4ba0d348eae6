"""Django's transactions: ``delay_on_commit`` publishes after the commit, and nothing after a rollback."""

from __future__ import annotations

from pathlib import Path

from ..support.ledger import Ledger
from ..support.processes import Children, tail
from .compatibility import Row
from .django_project import DjangoProject

COMPATIBILITY = Row(
    package="django",
    tried="`delay_on_commit`, `apply_async_on_commit`: commits, rollbacks, nested blocks, errors, no broker; "
    "`SafeString`, `TextChoices` and lazy translations as arguments, headers, ids and names of queues",
    result="A task is published after the outermost commit, and none after a rollback. Without a broker, the rows stay "
    "committed and the publish raises `OperationalError`.",
    settings="`delay_on_commit` instead of `delay` in a transaction",
)


def test_only_committed_transactions_publish(
    broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    project = DjangoProject(broker_url, tmp_path, started)
    lengths = project.call("transactions", "publish_in_transactions", broker_url, str(ledger))
    assert lengths == {
        "without a transaction": 1,
        "before the commit": 1,
        "after the commit": 2,
        "after a rollback": 2,
        "before the outer commit": 2,
        "after the outer commit": 4,
        "after the outer rollback": 4,
        "after an error of the database": 4,
        "delay alone, rolled back": 5,
    }
    worker = project.worker()
    expected = ["without a transaction", "committed", "outer", "inner", "not on commit"]
    ledger.wait_for(*expected)
    assert worker.terminate() == 0, tail(worker.log)
    assert ledger.lines() == expected


def test_texts_of_djangos_types_are_sent_as_texts(
    broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    project = DjangoProject(broker_url, tmp_path, started)
    assert project.call("transactions", "publish_texts_of_django", broker_url, str(ledger)) == {
        "headers": ["<b>sent</b>", "urgent", "sent", 1, "an-id", "<b>sent</b>"],
        "arguments": ["<b>sent</b>", "sent"],
    }


def test_a_commit_without_a_broker_keeps_its_rows_and_raises(tmp_path: Path, started: Children) -> None:
    settings = {"CELERY_BROKER_CONNECTION_TIMEOUT": 1, "CELERY_TASK_PUBLISH_RETRY": False}
    project = DjangoProject("opendata://127.0.0.1:1", tmp_path, started, settings)
    assert project.call("transactions", "publish_without_a_broker") == {"error": "OperationalError", "letters": 1}
