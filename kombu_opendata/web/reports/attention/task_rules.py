"""Findings about tasks and workers."""

from __future__ import annotations

from collections.abc import Iterator

from ....queue_client.queue_models import Worker
from ....readable_text import age, counted
from .finding import AttentionFinding, Severity
from .seen import Busy, Seen, TaskFailures

#: failures of the last ten minutes are bad from this share of what the queue settled, or from this number
FAILING_SHARE, FAILING_COUNT = 0.05, 100
#: a task hangs if its runtime exceeds the usual one by this factor, and this minimum
HANGS_TIMES, HANGS_SECONDS = 10.0, 10.0
#: a task without known runs is bad only after this time
SURELY_HANGS_SECONDS = 30.0
#: duration after which a message is held for too long, by a program or behind a task of its worker
HELD_SECONDS = 300.0
#: texts of the reasons of failures without an exception
_REASONS = {
    "timed_out": "timed out", "lost": "lost with its worker", "rejected": "rejected",
    "delivery_limit": "no attempts left", "raised": "raised", "": "not known",
}  # fmt: skip
#: number of exceptions that a sentence names
_NAMED = 3


def task_findings(seen: Seen) -> Iterator[AttentionFinding]:
    """Yield the findings about tasks and workers."""
    for failing in seen.failures:
        yield _failing(failing, seen)
    for busy in filter(hangs, seen.busy):
        yield _hanging(busy, seen)
    for worker in seen.workers:
        if worker.held + worker.running and not worker.connected:
            yield _gone(worker)
        elif worker.suspended:
            yield _worker("suspended", "note", worker, " is suspended and gets no messages.")


def _failing(failing: TaskFailures, seen: Seen) -> AttentionFinding:
    trend = seen.trends.get(failing.queue)
    finished = max(trend.settled, failing.count) if trend is not None else 0
    share = failing.count / finished if finished else 0.0
    reasons = failing.by_exception[:_NAMED]
    if len(failing.by_exception) == 1 and reasons[0][0] not in _REASONS:
        text = f" raises {reasons[0][0]}: {failing.count:,} in ten minutes"
    else:
        texts = ", ".join(f"{_REASONS.get(name, name)} {count:,}" for name, count in reasons)
        more = ", …" if len(failing.by_exception) > len(reasons) else ""
        text = f" fails: {failing.count:,} in ten minutes ({texts}{more})"
    text += f", {share:.0%} of what its queue finished." if share >= 0.01 else "."
    severe = share >= FAILING_SHARE or failing.count >= FAILING_COUNT
    query = {"task": failing.task} if failing.task else {"queue": failing.queue}
    before, subject = ("Task ", failing.task) if failing.task else ("Queue ", failing.queue)
    return AttentionFinding(
        "failing", "bad" if severe else "warn", before, subject, text, "failed", query, failing.count
    )  # fmt: skip


def hangs(busy: Busy) -> bool:
    """Return True if a task runs for too long, or a message is held for too long."""
    if not busy.running:
        return busy.seconds >= HELD_SECONDS
    return busy.seconds >= max(HANGS_SECONDS, HANGS_TIMES * (busy.usual_seconds or 0))


def _hanging(busy: Busy, seen: Seen) -> AttentionFinding:
    others = [f"{busy.count - 1:,} more there"] * (busy.count > 1) + [f"{busy.waiting:,} more held"] * (
        busy.waiting > 0
    )
    since, more = age(busy.seconds), f" (and {', '.join(others)})" if others else ""
    is_known = busy.usual_seconds is not None
    usual = f"; it usually takes {_short(busy.usual_seconds)}" if busy.usual_seconds is not None else ""
    if busy.running and not is_known:
        usual = "; how long it usually takes is not known"
    verb = "has run for" if busy.running else "has been held for"
    text = f" {verb} {since} at {busy.worker or 'a worker without a name'}{more}{usual}."
    queue = next((candidate for candidate in seen.queues if candidate.queue == busy.queue), None)
    if queue is not None and queue.visible and not (queue.delivered_per_second or queue.paused):
        are_ready = f"{counted(queue.visible, 'message')} {'is' if queue.visible == 1 else 'are'} ready"
        text += f" Queue {queue.queue} delivers nothing: {are_ready}."
    severity: Severity = "bad" if busy.running and (is_known or busy.seconds >= SURELY_HANGS_SECONDS) else "warn"
    if busy.task_id:
        query = {"id": busy.task_id}
        return AttentionFinding(
            "hanging", severity, "Task ", busy.task or busy.task_id, text, "task", query, busy.seconds
        )
    query = {"id": str(busy.message_id)}
    text = f" of queue {busy.queue}{text}"
    return AttentionFinding("hanging", severity, "Message ", str(busy.message_id), text, "task", query, busy.seconds)


def _short(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else age(seconds)


def _gone(worker: Worker) -> AttentionFinding:
    message_count = counted(worker.held + worker.running, "message")
    text = f" has disconnected and still holds {message_count}, which others get soon."
    return _worker("worker_gone", "warn", worker, text)


def _worker(kind: str, severity: Severity, worker: Worker, after: str) -> AttentionFinding:
    return AttentionFinding(kind, severity, "Worker ", worker.name or worker.id, after, "workers", {}, worker.held)
