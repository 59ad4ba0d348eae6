"""The events of a history by what they are about, for the rules that decide the points."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any, Generic, TypeVar

import msgspec

from .events import (
    Called,
    ClockSet,
    Crashed,
    Cut,
    Damaged,
    Delivered,
    Entry,
    Event,
    GetResult,
    History,
    Lost,
    Operation,
    Plain,
    Publish,
    Remove,
    Returned,
    Rules,
    Settle,
    StoreResult,
    Unreadable,
)

OperationT = TypeVar("OperationT", bound=Operation)
EventT = TypeVar("EventT", bound=Event)


KeyT = TypeVar("KeyT")
ItemT = TypeVar("ItemT")


class Lists(dict[KeyT, list[ItemT]]):
    """Lists by key. A key that has none gives an empty one, and stays without."""

    def __missing__(self, key: KeyT) -> list[ItemT]:
        return []

    def add(self, key: KeyT, item: ItemT) -> None:
        self.setdefault(key, []).append(item)


class Call(Plain, Generic[OperationT]):
    """A call with its end; ``outcome`` is "unknown" where there is none."""

    client: str
    operation: OperationT
    called_at: float
    returned_at: float = math.inf
    outcome: str = "unknown"
    reply: Any = None

    @property
    def is_returned(self) -> bool:
        return self.outcome == "returned"


class Index:
    """A history, indexed.

    Attributes:
        publishes: by key.
        deliveries: by queue and id, in the order of their tokens, which is that of the claims.
        by_key: deliveries in the order of their times, by key.
        entries: by queue and id.
        settlements: by queue, id and token.
        unreadable: the keys of messages whose payloads were damaged for a time.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.store = history.store
        self.calls: list[Call[Any]] = _calls(history)
        self.publishes: Lists[str, Call[Publish]] = Lists()
        self.settlements: Lists[tuple[str, int, int], Call[Settle]] = Lists()
        self.removals: Lists[str, Call[Remove]] = Lists()
        for publish in self.of(Publish):
            self.publishes.add(publish.operation.key, publish)
        for settle in self.of(Settle):
            at = settle.operation
            self.settlements.add((at.queue, at.id, at.token), settle)
        for removal in self.of(Remove):
            self.removals.add(removal.operation.queue, removal)
        self.deliveries: Lists[tuple[str, int], Delivered] = Lists()
        self.by_key: Lists[str, Delivered] = Lists()
        self._ids: Lists[tuple[str, str], int] = Lists()
        self.entries: Lists[tuple[str, int], Entry] = Lists()
        for event in self.all(Delivered):
            self.deliveries.add((event.queue, event.id), event)
            self.by_key.add(event.key, event)
            self._ids.add((event.queue, event.key), event.id)
        for of_message in self.deliveries.values():
            of_message.sort(key=lambda delivery: delivery.token)
        for entry in self.store.entries:
            self.entries.add((entry.queue, entry.id), entry)
            self._ids.add((entry.queue, entry.key), entry.id)
        self._answers = _answers(self.calls)
        self.losses: Lists[str, Lost] = Lists()
        for loss in self.all(Lost):
            self.losses.add(loss.client, loss)
        self.power_losses = [(event.synced_at, event.at) for event in self.all(Crashed) if event.synced_at]
        self.crashes = [(event.since or event.at, event.at) for event in self.all(Crashed)]
        self.cuts = self.all(Cut)
        self.clock_changes = self.all(ClockSet)
        self.unreadable = {key for event in self.all(Unreadable) for key in event.keys}

    def ids(self, queue: str, key: str) -> set[int]:
        """The ids of the messages in a queue that have a key: delivered, or in the store."""
        return set(self._ids[queue, key])

    def all_ids(self, key: str) -> set[int]:
        """The same for all queues."""
        return {id for (_queue, other), ids in self._ids.items() if other == key for id in ids}

    def partition(self, key: str) -> str:
        return next((call.operation.partition for call in self.publishes[key]), "")

    def all(self, kind: type[EventT]) -> list[EventT]:
        """All events of a type, in order."""
        return [event for event in self.history.events if isinstance(event, kind)]

    def of(self, kind: type[OperationT]) -> list[Call[OperationT]]:
        """All calls of an operation."""
        return [call for call in self.calls if isinstance(call.operation, kind)]

    def rules(self, queue: str) -> Rules:
        return self.history.rules.get(queue, Rules())

    @property
    def is_damaged(self) -> bool:
        return any(isinstance(event, Damaged) for event in self.history.events)

    def is_lost_between(self, client: str, since: float, until: float) -> bool:
        """Whether the broker was free to take what the client held at some time of an interval."""
        return any(since <= loss.at <= until for loss in self.losses[client])

    def has_crash_between(self, since: float, until: float) -> bool:
        return any(since <= last and first <= until for first, last in self.crashes)

    def any_loss_between(self, since: float, until: float) -> bool:
        return any(self.is_lost_between(client, since, until) for client in self.losses)

    def may_return_between(self, since: float, until: float) -> bool:
        """Whether a message that no client received may have returned in an interval."""
        return self.any_loss_between(since, until) or any(since <= cut.at <= until for cut in self.cuts)

    def is_certain(self, call: Call[Settle], since: float) -> bool:
        """Whether a settlement of what was delivered at ``since`` has happened.

        A client sends settlements without waiting for the answer. So a later answer, or an orderly end, says that this
        one has arrived.
        """
        if call.outcome not in ("returned", "sent") or self.is_lost_between(call.client, since, call.called_at):
            return False
        lost_at = min(
            (loss.at for loss in self.losses[call.client] if loss.why != "closed" and loss.at >= call.called_at),
            default=math.inf,
        )
        undone = [synced_at for synced_at, until in self.power_losses if call.called_at <= until]
        lost_at, returned_at = min([lost_at, *undone]), call.returned_at if call.is_returned else math.inf
        if math.isinf(lost_at) or (call.is_returned and returned_at < min([math.inf, *undone])):
            return True
        called, answered = self._answers.get(call.client, ([], []))
        later = bisect_right(called, call.called_at)
        return later < len(called) and answered[later] < lost_at

    def arrived_by(self, call: Call[Settle], since: float) -> float:
        """The time by which a settlement of what was delivered at ``since`` has certainly happened; else infinity."""
        if not self.is_certain(call, since):
            return math.inf
        called, answered = self._answers.get(call.client, ([], []))
        later = bisect_right(called, call.called_at)
        returned_at = call.returned_at if call.is_returned else math.inf
        return min([returned_at, *answered[later : later + 1]])

    def may_be_undone(self, at: float) -> bool:
        """Whether a power loss may have taken what was answered at a time, other than a publish."""
        return any(synced_at <= at <= until for synced_at, until in self.power_losses)

    def certain_end(self, delivery: Delivered) -> Call[Settle] | None:
        """The settlement that has ended a delivery, if that is certain: not after another one had the message."""
        found = self.settlements[delivery.queue, delivery.id, delivery.token]
        taken_at = min(
            (other.at for other in self.deliveries[delivery.queue, delivery.id] if other.token > delivery.token),
            default=math.inf,
        )
        return next((call for call in found if call.called_at < taken_at and self.is_certain(call, delivery.at)), None)

    def clock_forward(self, since: float, until: float) -> float:
        """By how many seconds the broker's clock was set forward in an interval."""
        return sum(
            change.seconds for change in self.clock_changes if change.seconds > 0 and since <= change.at <= until
        )

    def first_results(self) -> dict[str, float]:
        """When the first call that stores a task's result began, by task."""
        found: dict[str, float] = {}
        for call in self.of(StoreResult):
            found.setdefault(call.operation.task, call.called_at)
        return found

    def has_result(self, task: str) -> bool:
        """Whether the final result of a task was certainly stored."""
        return task in self.store.results or any(
            call.is_returned and call.operation.task == task and (isinstance(call.operation, StoreResult) or call.reply)
            for call in self.calls
            if isinstance(call.operation, StoreResult | GetResult)
        )

    def clock_back(self, since: float, until: float) -> float:
        return -sum(
            change.seconds for change in self.clock_changes if change.seconds < 0 and since <= change.at <= until
        )


def _calls(history: History) -> list[Call[Any]]:
    ends = {(event.client, event.call): event for event in history.events if isinstance(event, Returned)}
    calls = []
    for event in history.events:
        if isinstance(event, Called):
            call: Call[Any] = Call(client=event.client, operation=event.operation, called_at=event.at)
            if (end := ends.get((event.client, event.call))) is not None:
                call = msgspec.structs.replace(call, returned_at=end.at, outcome=end.outcome, reply=end.reply)
            calls.append(call)
    return calls


def _answers(calls: list[Call[Any]]) -> dict[str, tuple[list[float], list[float]]]:
    """By client: when the calls that returned began, and for each the first answer to it or to a later one."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for call in sorted((call for call in calls if call.is_returned), key=lambda call: -call.called_at):
        called, answered = found.setdefault(call.client, ([], []))
        called.append(call.called_at)
        answered.append(min(call.returned_at, answered[-1] if answered else math.inf))
    return {client: (called[::-1], answered[::-1]) for client, (called, answered) in found.items()}
