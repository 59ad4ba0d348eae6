"""Whatever a verb of ``opendata-queue`` does at a broker, a call of both queue clients does."""

from __future__ import annotations

import inspect

import pytest

from kombu_opendata import AsyncQueueClient, QueueClient

from ...support.command_lines import VERBS

#: the calls behind each verb
CALLS = {
    "attempts": "list_attempts", "binding create": "bind", "binding delete": "unbind", "binding list": "list_bindings",
    "done count": "metrics metrics_all", "done delete": "delete_settled", "done list": "iter_by_state",
    "broker hand-over": "hand_over", "broker reload": "reload", "broker status": "status",
    "exchange create": "declare_exchange", "exchange delete": "delete_exchange", "exchange explain": "test_routing",
    "exchange list": "list_exchanges", "exchange show": "list_exchanges list_bindings",
    "failed archive": "archive_failed", "failed count": "metrics metrics_all group_failures",
    "failed delete": "delete_failures",
    "failed list": "list_failures group_failures", "failed retry": "retry_failures",
    "failed show": "list_failures task",
    "filter explain": "explain", "instance create": "create_instance", "instance list": "list_instances",
    "job cancel": "get_job cancel_job", "job delete": "delete_job", "job list": "list_jobs", "job retry": "retry_job",
    "job show": "get_job", "job wait": "wait_job",
    "maintain": "maintain", "message": "get", "messages": "list_messages", "peek": "peek", "ping": "is_healthy",
    "publish": "publish", "queue alter": "alter", "queue copy": "copy_messages", "queue create": "create",
    "queue delay": "delay_key", "queue partitions": "list_partitions",
    "queue delete": "delete_queue", "queue recent": "recent_metrics", "queue list": "list_queues",
    "queue metrics": "metrics metrics_all", "queue move": "move_messages",
    "queue pause": "pause", "queue purge": "purge", "queue resume": "resume", "queue show": "get_queue",
    "queue top": "metrics_all", "replay": "replay stop_replay replay_progress",
    "result get": "task_result", "send": "send send_batch", "status": "status", "task show": "task",
    "user whoami": "whoami",
    "worker list": "workers", "worker messages": "worker_messages", "worker reclaim": "reclaim_messages",
    "worker release": "release_worker_messages", "worker resume": "resume_worker", "worker shutdown": "shutdown_worker",
    "worker suspend": "suspend_worker",
}  # fmt: skip
#: what a client starts by itself, and what works on files and processes of a host
OF_A_HOST = {
    "broker", "broker start", "broker stop", "config check", "config show", "hash-secret", "store backup",
    "store inspect", "store repair", "store restore", "store stats", "store verify", "user add", "user list",
    "user delete", "user permit", "web",
}  # fmt: skip


def test_every_verb_is_here() -> None:
    assert CALLS.keys() | OF_A_HOST == VERBS.keys()


@pytest.mark.parametrize("verb", sorted(CALLS))
def test_both_clients_can_do_it(verb: str) -> None:
    for name in CALLS[verb].split():
        for kind in (QueueClient, AsyncQueueClient):
            assert inspect.isfunction(getattr(kind, name, None)), f"{kind.__name__}.{name}"
