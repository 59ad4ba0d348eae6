"""Rules about deliveries: leases and tokens (3, 4), order (6), times and clocks (7, 8, 14)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from .checker import decides
from .events import CommitJob, Delivered
from .index import Index
from .message_rules import wrong_ends

#: brokers calculate with milliseconds of the system clock, which a machine corrects now and then
RESOLUTION_SECONDS = 0.1


@decides(3)
def leases_are_exclusive(index: Index) -> Iterator[str]:
    for (queue, id), deliveries in index.deliveries.items():
        for first, second in pairwise(deliveries):
            if first.token == second.token:
                if (first.client, first.attempt) != (second.client, second.attempt):
                    yield f"{first.client} and {second.client} have the same token for message {id} of {queue}"
                continue
            settled = any(
                call.called_at < second.at and call.operation.end != "ack"
                for call in index.settlements[queue, id, first.token]
            )
            acked = index.settlements[queue, id, first.token] and not settled  # points 4 and 5 decide it
            since = min(first.at, second.at) if first.at < second.at else 0.0
            lease_seconds = first.lease_seconds or index.rules(queue).lease_seconds or math.inf
            began_at = first.requested_at or first.at
            has_ended = second.at - began_at > lease_seconds - RESOLUTION_SECONDS
            has_ended = has_ended or index.clock_forward(began_at, second.at) > 0
            if not (settled or acked or has_ended or index.is_lost_between(first.client, since, second.at)):
                yield f"message {id} of {queue} was delivered to {second.client} while {first.client} held it"


@decides(4)
def tokens_survive_a_restart(index: Index) -> Iterator[str]:
    for deliveries in index.deliveries.values():
        for delivery in deliveries:
            end = index.certain_end(delivery)
            if end is None or end.operation.end not in ("ack", "reject"):
                continue
            if index.has_crash_between(delivery.at, end.called_at):
                yield from wrong_ends(index, delivery, end)


@decides(4)
def stale_tokens_are_ignored(index: Index) -> Iterator[str]:
    for (queue, id), entries in index.entries.items():
        deliveries = index.deliveries[queue, id]
        if len(deliveries) < 2 or any(entry.state not in ("done", "failed") for entry in entries):
            continue
        last, state = deliveries[-1], entries[0].state
        stale = [
            call
            for delivery in deliveries[:-1]
            for call in index.settlements[queue, id, delivery.token]
            if call.called_at > last.at and call.operation.end in ("ack", "reject")
        ]
        for call in stale:
            if call.is_returned:
                yield f"{call.client} settled message {id} of {queue} by the token of an earlier delivery"
        limit = index.rules(queue).max_attempts
        ends = {call.operation.end for call in index.settlements[queue, id, last.token]}
        explained = "ack" in ends if state == "done" else ends or (limit and last.attempt >= limit)
        is_lost = any(loss.why != "closed" for loss in index.losses[last.client])
        if stale and not explained and not is_lost and not index.power_losses:
            by = f"{stale[0].client}'s token of an earlier delivery"
            yield f"message {id} of {queue} is {state} by {by}"


@decides(6)
def older_messages_are_first(index: Index) -> Iterator[str]:
    """Decide by the tokens, which are the times of the claims: of equal messages, that with the lower id has the lower.

    Messages that are delayed, or come by another way than a publish, are left out, and so are those that may have been
    claimed before: by a client that was lost, or by a broker that ended before it sent the delivery.
    """
    rows = {key for call in index.of(CommitJob) for key in call.operation.keys}
    first_claims: dict[tuple[str, int], list[Delivered]] = defaultdict(list)
    for (queue, _id), deliveries in index.deliveries.items():
        first = deliveries[0]
        publishes = index.publishes[first.key]
        if not publishes or first.key in rows or first.attempt > 1 or not index.rules(queue).is_ordered:
            continue
        publish, since = publishes[0].operation, publishes[0].called_at
        is_first = not index.may_return_between(0, first.at) and not index.has_crash_between(since, first.at)
        if is_first and not publish.delay and queue in publish.queues:
            first_claims[queue, publish.priority].append(first)
    for (queue, _priority), claims in first_claims.items():
        claims.sort(key=lambda delivery: delivery.id)
        for older, newer in pairwise(claims):
            if older.token > newer.token:
                yield f"{queue} delivered {newer.key} before {older.key}, which is older"


@decides(6)
def next_messages_are_delivered(index: Index) -> Iterator[str]:
    """Decide by requests: what was ready before one, and was claimed after its answer, must not have been next."""

    def rank(delivery: Delivered) -> tuple[int, int]:
        return -index.publishes[delivery.key][0].operation.priority, delivery.id

    for queue in sorted({queue for queue, _id in index.deliveries if index.rules(queue).is_ordered}):
        ready = list(_ready_intervals(index, queue))
        requested = [
            delivery
            for (other, _id), deliveries in index.deliveries.items()
            for delivery in deliveries
            if other == queue and delivery.requested_at and index.publishes[delivery.key]
        ]
        for delivery in requested:
            for since, until, better in ready:
                is_ready = since < delivery.requested_at and delivery.at < until
                if is_ready and rank(better) < rank(delivery):
                    yield f"{queue} delivered {delivery.key}, and {better.key} was next"


def _ready_intervals(index: Index, queue: str) -> Iterator[tuple[float, float, Delivered]]:
    """Times in which a message was ready: from its publish or return until its next delivery was requested."""
    for (other, _id), deliveries in index.deliveries.items():
        if other != queue or not (publishes := index.publishes[deliveries[0].key]):
            continue
        publish = publishes[0].operation
        since = min(call.returned_at for call in publishes) + publish.delay
        since += RESOLUTION_SECONDS if publish.delay else 0.0
        stored_at, attempt = publishes[0].called_at, 1  # perhaps: a publish that was repeated is answered later
        for delivery in deliveries:
            # a clock that was set back stands still while no broker runs
            plain = not publish.ttl and not (publish.delay and index.clock_back(0, delivery.at))
            plain = plain and not index.may_return_between(0, delivery.at)
            plain = plain and not index.has_crash_between(min(since, stored_at), delivery.at)
            if delivery.requested_at and delivery.attempt == attempt and plain:
                yield since, delivery.requested_at, delivery
            end = index.certain_end(delivery)
            since = math.inf
            if end is not None and end.is_returned and end.operation.end in ("requeue", "release"):
                since = end.returned_at
            stored_at = since
            attempt = delivery.attempt + (end is not None and end.operation.end == "requeue")


def _early(index: Index) -> Iterator[tuple[bool, str]]:
    """Deliveries before their times, and whether the clock was set back before."""
    for key, deliveries in index.by_key.items():
        for publish in index.publishes[key]:
            due_at = publish.called_at + publish.operation.delay
            for delivery in deliveries if publish.operation.delay else ():
                early = due_at - delivery.at - index.clock_forward(0, delivery.at)
                if early > RESOLUTION_SECONDS:
                    yield (
                        index.clock_back(publish.called_at, delivery.at) > 0,
                        f"{key} was delivered {early:.3f} s early",
                    )


def _late(index: Index) -> Iterator[tuple[bool, str]]:
    """Deliveries that were requested after their deadlines, and whether the clock was set back before.

    While no broker runs, only the system clock counts the time: not if it was set back.
    """
    for key, deliveries in index.by_key.items():
        publishes = [call for call in index.publishes[key] if call.operation.ttl]
        for delivery in deliveries:
            deadlines = [call.returned_at + call.operation.delay + call.operation.ttl for call in publishes]
            if not deadlines or not delivery.requested_at:
                continue
            deadline, called_at = max(deadlines), publishes[0].called_at
            if index.clock_back(0, delivery.at) and index.has_crash_between(called_at, delivery.at):
                continue
            late = delivery.requested_at - deadline - index.clock_back(called_at, deadline)
            if late > RESOLUTION_SECONDS:
                yield (
                    index.clock_back(called_at, delivery.at) > 0,
                    f"{key} was delivered {late:.3f} s after its deadline",
                )


@decides(7)
def delays_pass(index: Index) -> Iterator[str]:
    yield from (text for set_back, text in _early(index) if not set_back)


@decides(8)
def deadlines_end_messages(index: Index) -> Iterator[str]:
    yield from (text for set_back, text in _late(index) if not set_back)


@decides(14)
def clocks_that_are_set_back_change_nothing(index: Index) -> Iterator[str]:
    for set_back, text in (*_early(index), *_late(index)):
        if set_back:
            yield f"{text}, and the clock was set back"
