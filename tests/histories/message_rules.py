"""Rules about what is stored: once (1, 12), in one state (2), with the end that it was given (5, 17)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from .checker import decides
from .events import (
    AbortJob,
    CommitJob,
    Counted,
    Delivered,
    Leave,
    Publish,
    SendCallback,
    Settle,
    StartChord,
    StoreResult,
    TaskEnded,
)
from .index import Call, Index

#: the tasks that a worker runs at the same time
_WORKER_SLOTS = 2
#: the counters of the ends of leases
_ENDS = ("acked", "rejected", "requeued", "released", "lease_expired", "deleted")


@decides(1)
def published_messages_are_stored_once(index: Index) -> Iterator[str]:
    for key, calls in index.publishes.items():
        for queue in calls[0].operation.queues:
            ids = index.ids(queue, key)
            if len(ids) > 1:
                yield f"{key} is stored twice in {queue}: {sorted(ids)}"
            returned = [call for call in calls if call.is_returned]
            if calls[0].operation.unique:
                continue
            if returned and _is_lost(index, queue, key, calls):
                yield f"{key} is lost: its publish to {queue} returned, and the queue has it not"
            replies = {call.reply for call in returned if call.reply is not None}
            if replies and ids and not replies <= ids:
                yield f"{key} was answered with the id {sorted(replies)}, and is stored in {queue} as {sorted(ids)}"


def _is_lost(index: Index, queue: str, key: str, calls: list[Call[Publish]]) -> bool:
    """Whether nothing explains that a queue does not have a message in any state."""
    found = [entry for id in index.ids(queue, key) for entry in index.entries[queue, id]]
    if any(entry.state != "gone" for entry in found):
        return False
    if any(call.operation.ttl for call in calls):
        return False
    if any(removal.returned_at > calls[0].called_at for removal in index.removals[queue]):
        return False
    deliveries = [delivery for id in index.ids(queue, key) for delivery in index.deliveries[queue, id]]
    return not any(index.settlements[queue, each.id, each.token] for each in deliveries)


@decides(2)
def messages_have_one_state(index: Index) -> Iterator[str]:
    for (queue, id), entries in index.entries.items():
        if len(entries) > 1:
            yield f"message {id} is in {queue} as {' and as '.join(entry.state for entry in entries)}"


@decides(5)
def ends_are_kept(index: Index) -> Iterator[str]:
    for (queue, id), deliveries in index.deliveries.items():
        for delivery in deliveries:
            end = index.certain_end(delivery)
            if end is None or end.operation.end not in ("ack", "reject"):
                continue
            if index.has_crash_between(delivery.at, end.called_at):
                continue  # point 4 decides it
            yield from wrong_ends(index, delivery, end)
        limit = index.rules(queue).max_attempts
        for delivery in deliveries:
            if limit and delivery.attempt > limit:
                yield f"message {id} of {queue} was delivered {delivery.attempt} times, and may be {limit} times"


def wrong_ends(index: Index, delivery: Delivered, end: Call[Settle]) -> Iterator[str]:
    """Say what contradicts an acknowledgement or a rejection that is certain."""
    queue, id, how = delivery.queue, delivery.id, end.operation.end
    for later in index.deliveries[queue, id]:
        if later.token > delivery.token:
            yield f"message {id} ({delivery.key}) of {queue} was delivered again, to {later.client}, after its {how}"
    target = index.rules(queue).dead_letters
    for entry in index.entries[queue, id]:
        if entry.state not in {"ack": ("done", "gone"), "reject": ("failed", "gone")}[how]:
            yield f"message {id} ({delivery.key}) of {queue} is {entry.state} after its {how}"
    if how == "reject" and target and not index.ids(target, delivery.key) and delivery.key not in index.unreadable:
        yield f"message {id} ({delivery.key}) of {queue} was rejected, and {target} has no dead letter"
    if target and len(index.ids(target, delivery.key)) > 1:
        yield f"message {id} ({delivery.key}) of {queue} has several dead letters in {target}"


@decides(5)
def attempts_are_counted(index: Index) -> Iterator[str]:
    for (queue, id), deliveries in index.deliveries.items():
        for first, second in pairwise(deliveries):
            end = index.certain_end(first)
            # a broker that ends may have claimed the message, and not sent it
            is_open = index.any_loss_between(0, second.at) or index.has_crash_between(first.at, second.at)
            if end is None or is_open:
                continue
            how = end.operation.end
            expected = first.attempt + (how != "release")
            if how in ("release", "requeue") and second.attempt != expected:
                yield f"message {id} of {queue} has attempt {second.attempt} after a {how} of attempt {first.attempt}"


@decides(5)
def done_messages_were_acknowledged(index: Index) -> Iterator[str]:
    """Decide by recorded deliveries: workers record none.

    A power loss may take a return, so that an acknowledgement with its token is right again.
    """
    for (queue, id), entries in index.entries.items():
        if not (deliveries := index.deliveries[queue, id]):
            continue
        settlements = [call for each in deliveries for call in index.settlements[queue, id, each.token]]
        is_acked = any(call.operation.end == "ack" for call in settlements)
        if any(entry.state == "done" for entry in entries) and not (is_acked or index.power_losses):
            yield f"message {id} of {queue} is done, and no client that held it acknowledged it"


@decides(5)
def failures_have_a_reason(index: Index) -> Iterator[str]:
    for (queue, id), entries in index.entries.items():
        limit = index.rules(queue).max_attempts
        for entry in entries:
            may_fail = entry.key in index.unreadable or any(call.operation.ttl for call in index.publishes[entry.key])
            if entry.state != "failed" or may_fail:
                continue
            ends = {
                call.operation.end
                for delivery in index.deliveries[queue, id]
                for call in index.settlements[queue, id, delivery.token]
            }
            if "reject" not in ends and not (limit and entry.attempts >= limit):
                yield f"message {id} of {queue} failed after {entry.attempts} attempts, and was not rejected"


@decides(5)
def tasks_run_once(index: Index) -> Iterator[str]:
    """Decide for tasks whose worker was never lost, nor any other: only then no message may return."""
    runs = Counter(event.key for event in index.all(TaskEnded))
    for key, count in runs.items():
        clients = {event.client for event in index.all(TaskEnded)}
        if count > 1 and not any(loss.why != "closed" for client in clients for loss in index.losses[client]):
            yield f"the task {key} ran {count} times"


@decides(12)
def rows_of_jobs_are_stored_once(index: Index) -> Iterator[str]:
    committed = {call.operation.job for call in index.of(CommitJob)}
    for call in index.of(CommitJob):
        job = call.operation
        stored = [key for key in job.keys if index.ids(job.queue, key)]
        missing = sorted(set(job.keys) - set(stored))
        if missing and (stored or call.is_returned):
            yield f"{len(missing)} rows of {job.job} are lost: {missing[:5]}"
        twice = [key for key in job.keys if len(index.ids(job.queue, key)) > 1]
        if twice:
            yield f"rows of {job.job} are stored twice: {twice[:5]}"
    for aborted in index.of(AbortJob):
        if aborted.operation.job not in committed:
            found = [key for key in aborted.operation.keys if index.all_ids(key)]
            if found:
                yield f"rows of {aborted.operation.job}, which was aborted, are stored: {found[:5]}"


@decides(17)
def outcomes_are_recorded_once(index: Index) -> Iterator[str]:
    if index.store.runs is None:
        return
    # a release costs no attempt: the next one has its number
    runs = [run for run in index.store.runs if run.outcome != "released"]
    for (queue, id, number), count in Counter((run.queue, run.id, run.number) for run in runs).items():
        if count > 1:
            yield f"attempt {number} of message {id} in {queue} is recorded {count} times"
    recorded = {(run.queue, run.id, run.number, run.outcome) for run in runs}
    for (queue, id), deliveries in index.deliveries.items():
        for delivery in deliveries:
            end = index.certain_end(delivery)
            if end is None or end.operation.end != "ack":
                continue
            if (queue, id, delivery.attempt, "acked") not in recorded:
                yield f"attempt {delivery.attempt} of message {id} in {queue} was acknowledged, and is not recorded"
    acked = Counter(run.queue for run in index.store.runs if run.outcome == "acked")
    held = Counter(entry.queue for entry in index.store.entries if entry.state == "in_flight")
    running = _running_tasks(index, {(run.queue, run.id) for run in runs})
    for queue, counts in index.store.counts.items():
        if not acked[queue] <= counts["acked"] <= acked[queue] + running[queue]:
            yield f"{queue} counts {counts['acked']} acknowledged attempts, and {acked[queue]} are recorded"
        ended = sum(counts[name] for name in _ENDS)
        if counts["delivered"] != ended + held[queue]:
            yield f"{queue} counts {counts['delivered']} deliveries, {ended} ends, and {held[queue]} are in flight"


def _running_tasks(index: Index, recorded: set[tuple[str, int]]) -> Counter[str]:
    """Count by queue the tasks that may still run at clients that were killed: their sessions wait for them.

    Celery's workers record no deliveries; each may have run some tasks that it had acknowledged early.
    """
    running = Counter[str]()
    for (queue, id, _token), calls in index.settlements.items():
        may_run = any(
            call.operation.runs and loss.why == "killed" for call in calls for loss in index.losses[call.client]
        )
        running[queue] += may_run and (queue, id) not in recorded
    receivers = {event.client for event in index.all(Delivered)}
    workers = {event.client for event in index.all(TaskEnded)} - receivers
    kills = sum(loss.why == "killed" for worker in workers for loss in index.losses[worker])
    for queue in index.store.counts.keys() - {queue for queue, _id in index.deliveries}:
        running[queue] += _WORKER_SLOTS * kills
    return running


@decides(17)
def lost_tasks_have_an_outcome(index: Index) -> Iterator[str]:
    """Decide for tasks that began after an early acknowledgement, at an end at which no client is left."""
    if index.store.runs is None or index.power_losses:
        return
    recorded = {(run.queue, run.id) for run in index.store.runs if run.state}
    ended = {(event.client, event.key) for event in index.all(TaskEnded)}
    for (queue, id), deliveries in index.deliveries.items():
        for delivery in deliveries:
            end = index.certain_end(delivery)
            began = end is not None and end.operation.runs and (delivery.client, delivery.key) not in ended
            if began and (queue, id) not in recorded:
                yield f"the task {delivery.key} began at {delivery.client} and has no outcome"


@decides(17)
def tasks_of_clients_that_left_are_lost(index: Index) -> Iterator[str]:
    """Decide by the times at which they became lost: before the broker answered the client that left.

    The loss of the session before says that another one left, which did not have the task.
    """
    ended = {(event.client, event.key) for event in index.all(TaskEnded)}
    lost = {(run.queue, run.id): run.ended_at_ms for run in index.store.runs or () if run.state == "lost"}
    for leave in index.of(Leave) if not index.power_losses else ():
        for (queue, id), deliveries in index.deliveries.items():
            for each in deliveries if leave.is_returned and lost.get((queue, id), 0) > leave.reply else ():
                end = index.certain_end(each)
                began = end is not None and end.operation.runs and end.called_at < leave.called_at
                losses = [loss for loss in index.losses[each.client] if each.at <= loss.at <= leave.called_at]
                is_of_session = each.client == leave.client and len(losses) <= 1
                if began and is_of_session and (each.client, each.key) not in ended:
                    late_ms = lost[queue, id] - leave.reply
                    yield f"the task {each.key} was lost {late_ms} ms after {each.client} had left"


@decides(17)
def tasks_end_once(index: Index) -> Iterator[str]:
    if index.store.runs is None:
        return
    key_of = {(entry.queue, entry.id): entry.key for entry in index.store.entries}
    ended = Counter((event.key, event.end) for event in index.all(TaskEnded))
    recorded = Counter((key_of.get((run.queue, run.id), ""), run.state) for run in index.store.runs if run.state)
    for (key, state), count in recorded.items():
        if state not in ("lost", "revoked") and count > ended[key, state]:
            yield f"{key} {state} {ended[key, state]} times, and is recorded as that {count} times"
    for event in index.all(TaskEnded):
        if not recorded[event.key, event.end] and not index.losses[event.client]:
            yield f"{event.key} {event.end}, and no attempt says so"


@decides(17)
def outcomes_are_counted_once(index: Index) -> Iterator[str]:
    """Decide for tasks whose name is their key: each ended as often as it was counted, or more often."""
    ended = Counter(event.key for event in index.all(TaskEnded))
    for counted in index.all(Counted):
        for key, count in counted.runs.items():
            if count > ended[key] > 0:
                yield f"{key} ended {ended[key]} times, and is counted {count} times"


@decides(11)
def callbacks_are_sent_once(index: Index) -> Iterator[str]:
    first_stored = index.first_results()
    for call in index.of(StartChord):
        chord = call.operation
        ids = index.all_ids(chord.callback)
        if len(ids) > 1 + _explained_sends(index, chord):
            yield f"the callback {chord.callback} was sent {len(ids)} times: {sorted(ids)}"
        delivered = [event.at for event in index.by_key[chord.callback]]
        delivered += [event.at for event in index.all(TaskEnded) if event.key == chord.callback]
        parts = [first_stored.get(part) for part in chord.parts]
        if delivered and any(at is None or at > min(delivered) for at in parts):
            yield f"the callback {chord.callback} was sent before all of its tasks had results"
        waiting = [key for key in chord.messages or chord.parts if _waits(index, key)]
        if call.is_returned and not ids and not waiting and all(index.has_result(part) for part in chord.parts):
            yield f"the callback {chord.callback} was not sent, and all of its tasks have results"


def _explained_sends(index: Index, chord: StartChord) -> int:
    """How often a callback may have been sent again: after the end of a client, which may have sent it before."""
    sends = [call for call in index.of(SendCallback) if call.operation.callback == chord.callback]
    explained = 0
    for first, second in pairwise(sends):
        chosen_at = max(
            call.called_at
            for call in index.of(StoreResult)
            if call.client == first.client and call.operation.task in chord.parts and call.called_at < first.called_at
        )
        interval = chosen_at, second.called_at
        explained += index.may_return_between(*interval) or index.has_crash_between(*interval)
    return explained


def _waits(index: Index, key: str) -> bool:
    """Whether a task was not done, so that its worker may have had no time to send the callback."""
    entries = [entry for queue, id in index.entries for entry in index.entries[queue, id] if entry.key == key]
    return any(entry.state in ("available", "in_flight") for entry in entries)
