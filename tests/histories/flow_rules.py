"""Rules about limits and unique keys (16), and the order within a partition (6)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .checker import decides
from .delivery_rules import RESOLUTION_SECONDS
from .events import Define, Delay, Delivered, Measured, Publish, Revoke, Started, TaskEnded
from .index import Call, Index, Lists
from .state_rules import possible_values

#: how much earlier than its time a delivery may come, so that the next ones are not late
_EARLY_MS = 55


@decides(16)
def limits_hold(index: Index) -> Iterator[str]:
    for key, calls in index.publishes.items():
        if all(call.outcome == "refused" for call in calls):
            found = [queue for queue in calls[0].operation.queues if index.ids(queue, key)]
            if found:
                yield f"{key} is in {found}, and its publish was refused"
    for measured in index.all(Measured):
        if measured.value > measured.limit:
            yield f"{measured.name} is {measured.value}, over its limit of {measured.limit}"


# ------------------------------------------------------------------ unique keys
@decides(16)
def unique_keys_have_one_message(index: Index) -> Iterator[str]:
    """Decide by publishes that began and ended while another message with the key was certainly there."""
    of_key: Lists[str, tuple[Call[Publish], float]] = Lists()
    for key, calls in index.publishes.items():
        if not (unique := calls[0].operation.unique):
            continue
        for queue in calls[0].operation.queues:
            if index.ids(queue, key):
                of_key.add(unique, (calls[0], _has_key_until(index, queue, calls[0])))
    for unique, messages in of_key.items():
        for holder, until in messages:
            for other, _until in messages:
                if holder.returned_at < other.called_at and other.returned_at < until:
                    yield f"{other.operation.key} was stored while {holder.operation.key} had the key {unique}"


def _has_key_until(index: Index, queue: str, publish: Call[Publish]) -> float:
    """The last time at which a stored message certainly had its unique key."""
    key, until, since = publish.operation.key, publish.operation.until, publish.called_at
    if until > 0:
        replacements = [
            call.called_at
            for call in index.of(Publish)
            if call.operation.unique == publish.operation.unique and call.operation.replaces and call is not publish
        ]
        ends = [at for at in replacements if at > since]
        return min([since + until - RESOLUTION_SECONDS - index.clock_forward(since, math.inf), *ends])
    entries = [entry for id in index.ids(queue, key) for entry in index.entries[queue, id]]
    if until == 0:
        is_new = any(entry.state == "available" and not entry.attempts for entry in entries)
        return math.inf if is_new and not (publish.operation.ttl or index.losses or index.crashes) else -math.inf
    states = ("in_flight",) if publish.operation.ttl else ("in_flight", "available")
    if any(entry.state in states for entry in entries):
        return math.inf
    seen = [-math.inf]
    for id in index.ids(queue, key):
        for each in index.deliveries[queue, id]:
            if each.at < _lease_ends_at(index, each) and not index.is_lost_between(each.client, 0, each.at):
                seen.append(each.at)
    for event in index.all(TaskEnded):  # a task that was acknowledged early has its key until here
        if event.key == key and not index.is_lost_between(event.client, 0, event.at):
            seen.append(event.at)
    return max(seen)


@decides(16)
def unique_keys_are_released(index: Index) -> Iterator[str]:
    """Decide by the messages that publishes named because they had the key."""
    unique_calls = [call for call in index.of(Publish) if call.operation.unique and isinstance(call.reply, int)]
    key_of = {(entry.queue, entry.id): entry.key for entry in index.store.entries}
    for call in unique_calls:
        for queue in call.operation.queues:
            holder = index.publishes[key_of.get((queue, call.reply), "")]
            if not holder or holder[0].operation.key == call.operation.key:
                continue
            named = f"{call.operation.key} was not stored because of {holder[0].operation.key}"
            if holder[0].operation.unique != call.operation.unique:
                yield f"{named}, which has another key"
            elif _has_ended(index, queue, call.reply, holder[0], call.called_at):
                yield f"{named}, which had ended"
            elif _is_revoked(index, holder[0], call):
                yield f"{named}, which was revoked"


def _has_ended(index: Index, queue: str, id: int, holder: Call[Publish], at: float) -> bool:
    """Whether the key of a message was certainly free at a time."""
    publish, waited = holder.operation, at - holder.returned_at - index.clock_back(0, at)
    if publish.until > 0:
        return waited > publish.until + RESOLUTION_SECONDS
    for delivery in index.deliveries[queue, id]:
        end = index.certain_end(delivery)
        is_last = end is not None and end.operation.end in ("ack", "reject") and not end.operation.runs
        if end is not None and is_last and index.arrived_by(end, delivery.at) < at:
            return not index.power_losses
    never_claimed = not (index.losses or index.crashes or index.deliveries[queue, id])
    return bool(publish.ttl) and never_claimed and waited > publish.delay + publish.ttl + RESOLUTION_SECONDS


def _is_revoked(index: Index, holder: Call[Publish], call: Call[Publish]) -> bool:
    """Whether a message was revoked before a call, in the same run of the broker, and certainly waited for its time."""
    publish, since = holder.operation, holder.called_at
    if publish.until > 0 or call.returned_at >= since + publish.delay - index.clock_forward(since, call.returned_at):
        return False
    starts = [event.at for event in index.all(Started)]
    return any(
        revoke.operation.key == publish.key
        and revoke.returned_at < call.called_at
        and not index.has_crash_between(revoke.called_at, call.returned_at)
        and not any(revoke.called_at <= at <= call.returned_at for at in starts)
        for revoke in index.of(Revoke)
        if revoke.is_returned
    )


# ------------------------------------------------------------------ slots
@decides(16)
def few_messages_are_in_flight(index: Index) -> Iterator[str]:
    """Decide at each delivery: what other consumers certainly held at that time."""
    for queue, rules in index.history.rules.items():
        if not (rules.concurrency or rules.partition_concurrency):
            continue
        held = _held(index, queue)
        for delivery, _until in held:
            others = [other for other, until in held if other.at <= delivery.at < until]
            newest = max([delivery, *others], key=lambda other: other.token)
            limit = _concurrency(index, queue, newest, delivery.at)
            if limit and len(others) > limit:
                yield f"{len(others)} messages of {queue} are in flight, and {limit} may be"
            partition = index.partition(delivery.key)
            same = sum(index.partition(other.key) == partition for other in others)
            if rules.partition_concurrency and same > rules.partition_concurrency:
                yield f"{same} messages of {partition} in {queue} are in flight"


def _concurrency(index: Index, queue: str, newest: Delivered, until: float) -> int:
    """The highest limit of a queue that was possible when a message was claimed."""
    limit = index.rules(queue).concurrency
    writes = [call for call in index.of(Define) if call.operation.name == f"x-concurrency of {queue}"]
    writes = [call for call in writes if call.outcome != "refused"]
    if not writes:
        return limit
    since = max([newest.requested_at, *(call.called_at for call in index.publishes[newest.key][:1])])
    return max(value or limit for value in possible_values(writes, since, until))


def _held(index: Index, queue: str) -> list[tuple[Delivered, float]]:
    """The deliveries of a queue, each with the earliest time at which it may have ended."""
    ended = Lists[tuple[str, str], float]()
    for event in index.all(TaskEnded):
        ended.add((event.client, event.key), event.at)
    return [
        (delivery, _held_until(index, delivery, ended[delivery.client, delivery.key]))
        for (other, _id), deliveries in index.deliveries.items()
        for delivery in deliveries
        if other == queue
    ]


def _held_until(index: Index, delivery: Delivered, tasks_ended_at: list[float]) -> float:
    """The earliest time at which a delivery may have ended, or the task that it began."""
    ends = []
    for call in index.settlements[delivery.queue, delivery.id, delivery.token]:
        later = [at for at in tasks_ended_at if at >= call.called_at]
        ends.append(min(later, default=math.inf) if call.operation.runs else call.called_at)
    ends += [loss.at for loss in index.losses[delivery.client]]  # also before it was received
    ends += [other.at for other in index.deliveries[delivery.queue, delivery.id] if other.token > delivery.token]
    return min([_lease_ends_at(index, delivery), *ends])


def _lease_ends_at(index: Index, delivery: Delivered) -> float:
    """The earliest end of a lease that a consumer requested for a time; a clock that is set forward ends it earlier."""
    if not delivery.lease_seconds:
        return math.inf
    since = delivery.requested_at or delivery.at
    return since + delivery.lease_seconds - index.clock_forward(since, since + delivery.lease_seconds)


# ------------------------------------------------------------------ rates and delays
@decides(16)
def rates_are_kept(index: Index) -> Iterator[str]:
    """Decide by the tokens, which are the times of the claims. A power loss takes claims, and what they used."""
    for queue, rules in index.history.rules.items():
        if not (rules.rate or rules.partition_rate) or index.power_losses:
            continue
        claims: Lists[str | None, int] = Lists()
        for (other, _id), deliveries in index.deliveries.items():
            for token, key in sorted({(each.token, each.key) for each in deliveries if other == queue}):
                claims.add(None, token)
                claims.add(index.partition(key), token)
        for partition, tokens in claims.items():
            rate = rules.rate if partition is None else rules.partition_rate
            if rate and (text := _too_many(sorted(tokens), rate, rules.burst)):
                yield f"{queue} had {text} of {partition or 'all partitions'}"


def _too_many(times_ms: list[int], rate: float, burst: int) -> str:
    """Return a time with more deliveries than those of the rate and the burst, if there is one."""
    for number, first in enumerate(times_ms):
        for count, last in enumerate(times_ms[number:], 1):
            if count > burst + (last - first + _EARLY_MS) * rate / 1000:
                return f"{count} deliveries in {last - first} ms"
    return ""


@decides(16)
def delayed_keys_wait(index: Index) -> Iterator[str]:
    """Decide by deliveries that were requested, or published, after the delay began."""
    delays = index.of(Delay)
    for call in delays:
        delay, until_ms = call.operation, call.reply
        if not call.is_returned or not until_ms or index.may_be_undone(call.returned_at):
            continue
        ends = [
            other.called_at
            for other in delays
            if not other.operation.seconds
            and other.returned_at > call.called_at
            and (other.operation.queue, other.operation.partition) == (delay.queue, delay.partition)
        ]
        ended_at = min(ends, default=math.inf)
        for (queue, _id), deliveries in index.deliveries.items():
            for each in deliveries if queue == delay.queue else ():
                since = max([each.requested_at, *(publish.called_at for publish in index.publishes[each.key][:1])])
                is_of_key = index.partition(each.key) == delay.partition
                if is_of_key and call.returned_at < since and each.at < ended_at and each.token < until_ms - 1:
                    yield f"{queue} delivered {each.key} while {delay.partition} was delayed"


# ------------------------------------------------------------------ groups
@decides(6)
def groups_are_read_in_order(index: Index) -> Iterator[str]:
    """Decide by the replies to reads by groups: each has messages of a group in the order of their ids."""
    replies: Lists[tuple[str, str, float, str], Delivered] = Lists()
    for delivery in index.all(Delivered):
        if delivery.order:
            group = index.partition(delivery.key)
            replies.add((delivery.client, delivery.queue, delivery.requested_at, group), delivery)
    for (_client, queue, _at, group), deliveries in replies.items():
        ids = [delivery.id for delivery in deliveries]
        if ids != sorted(ids):
            yield f"{queue} delivered messages of {group} in the order {ids}"
        if deliveries[0].order == "head" and len(ids) > 1:
            yield f"{queue} delivered {len(ids)} messages of {group}, and only its first one was requested"


@decides(6)
def groups_are_free_when_they_are_read(index: Index) -> Iterator[str]:
    """Decide by what a group had at a read: an earlier message that was not at its end, or one that was in flight.

    An alteration may move messages to other groups, and a power loss takes claims and ends.
    """
    altered = {call.operation.name for call in index.of(Define)}
    for queue in sorted({each.queue for each in index.all(Delivered) if each.order}):
        if index.power_losses or f"x-partition-by of {queue}" in altered:
            continue
        held = _held(index, queue)
        groups = _messages_by_group(index, queue)
        for delivery in (each for each, _until in held if each.order):
            group = index.partition(delivery.key)
            same_read = {other.id for other, _until in held if _is_of_read(other, delivery)}
            text = f"{queue} delivered {delivery.key} of {group}"
            for id, stored_at, last_token in groups[group]:
                is_before = id < delivery.id and stored_at < delivery.requested_at
                if is_before and last_token > delivery.token and id not in same_read:
                    yield f"{text} before message {id}"
            for other, until in held:
                is_other = other.id not in same_read and index.partition(other.key) == group
                if is_other and other.at < delivery.requested_at and delivery.at < until:
                    yield f"{text} while {other.client} held {other.key}"


def _is_of_read(one: Delivered, other: Delivered) -> bool:
    return (one.client, one.requested_at) == (other.client, other.requested_at)


def _messages_by_group(index: Index, queue: str) -> Lists[str, tuple[int, float, float]]:
    """The published messages of a queue: the id, the time by which it was stored, and the token of its last delivery.

    For a message that is not at its end, the token is infinite.
    """
    found: Lists[str, tuple[int, float, float]] = Lists()
    for key, calls in index.publishes.items():
        stored_at = min(call.returned_at for call in calls)
        for id in index.ids(queue, key):
            is_left = any(entry.state in ("available", "in_flight") for entry in index.entries[queue, id])
            tokens = [each.token for each in index.deliveries[queue, id]]
            found.add(index.partition(key), (id, stored_at, math.inf if is_left else max(tokens, default=-math.inf)))
    return found
