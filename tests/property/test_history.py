"""Lists of history against a naive list of everything that happened: any filter, order and page, after any history.

The index may lag, its parts may be in memory, on their way or stored, runs may be merged, and the engine may crash.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kombu_opendata.protocol.messages import AttemptInfo, MessageInfo
from kombu_opendata.protocol.task_reports import STATES, TaskReport, TaskState
from kombu_opendata.storage.history import query
from kombu_opendata.storage.history.query import ListFilters
from kombu_opendata.storage.state.queue_buckets import QueueEntry
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import World
from tests.support.history import TINY

QUEUES = ("a", "b", "c")
TASKS = ("add", "mul", "sub")
CONSUMERS = (b"1" * 16, b"2" * 16)
EXCEPTIONS = ("", "app.Bad", "builtins.ValueError", "é")


@dataclass
class Known:
    """What the test knows of one message."""

    id: int
    received: int
    headers: dict[str, str]
    statuses: dict[str, str]
    gone: bool = False


class Ended(NamedTuple):
    """An attempt, with the fields of an AttemptInfo."""

    message_id: int
    queue: str
    consumer: str
    claimed: int
    ended: int
    number: int
    outcome: str
    report: TaskReport | None = None

    @property
    def state(self) -> str:
        return "" if self.report is None else STATES[self.report.state]


@dataclass
class Model:
    """Everything that happened."""

    messages: dict[int, Known] = field(default_factory=dict)
    attempts: list[Ended] = field(default_factory=list)

    def left(self, id: int, queue: str, status: str) -> None:
        """A message is in this queue no more; once it is in none it is collected."""
        known = self.messages[id]
        known.statuses[queue] = status
        known.gone = all(status in ("removed", "expired") for status in known.statuses.values())


class Story(World):
    """An engine to which random things happen, and the model of that."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, TINY)
        self.random = random.Random(seed)
        self.model = Model()
        self.committed = 0
        self.running: list[tuple[str, int, int, str, int]] = []  # queue, message id, token, consumer, attempt

    async def begin(self) -> None:
        await self.open()
        for name in QUEUES:
            self.engine.definitions.declare_queue(name, QueueSettings(max_attempts=2))
        await self.introduce()

    async def introduce(self) -> None:
        for session in CONSUMERS:
            self.engine.operations.name_session(session, f"worker-{session[:1].decode()}")
        await self.engine.commits.commit()

    async def step(self) -> None:
        chosen = self.random.choices(
            [
                self.send,
                self.work,
                self.purge,
                self.pause,
                self.checkpoint,
                self.index,
                self.crash_now,
                self.merge,
                self.finish,
            ],
            [30, 30, 1, 15, 6, 6, 1, 2, 10],
        )[0]
        await chosen()

    async def send(self) -> None:
        for _ in range(self.random.randrange(1, 8)):
            names = self.random.sample(QUEUES, self.random.choice((1, 1, 1, 2)))
            number = self.number
            headers = {"task": self.random.choice(TASKS), "id": f"id-{number}", "parity": str(number % 2)}
            self.number += 1
            id = self.engine.operations.publish(
                [self.queue(name) for name in names], b"x", headers, priority=255, created_at=0, visible_at=-1,
                ttl_ms=-1, session=CONSUMERS[0], seq=self.number, total=len(names),
            )  # fmt: skip
            received = self.clock.now_ms()
            self.model.messages[id] = Known(id, received, headers, dict.fromkeys(names, "available"))

    async def work(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            name, session = self.random.choice(QUEUES), self.random.choice(CONSUMERS)
            entry = await self.next(name)
            if entry is None:
                continue
            self.engine.operations.claim(self.queue(name), (entry,), session)
            self.model.messages[entry.id].statuses[name] = "in_flight"
            if self.random.random() < 0.9:
                self.clock.advance(self.random.choice((0, 1, 5)))
                self.end(name, entry, f"worker-{session[:1].decode()}")

    def end(self, name: str, entry: QueueEntry, consumer: str) -> None:
        how = self.random.choice(("ack", "ack", "start", "start", "reject", "requeue", "release", "expire"))
        queue, engine = self.queue(name), self.engine
        if how == "start":
            self.running.append((name, entry.id, entry.claimed_at, consumer, entry.attempts))
            engine.task_runs.start(queue, (entry,))
            self.model.left(entry.id, name, "running")
            return
        report = self.some_report() if how in ("ack", "reject", "requeue") else None
        if report is not None:
            engine.task_runs.note(queue, entry, report)
        number, claimed = entry.attempts, min(entry.claimed_at, self.clock.now_ms())
        spent = how in ("requeue", "expire") and entry.attempts >= 2
        if how == "ack":
            engine.operations.ack(queue, (entry,))
            outcome, status = "acked", "done"
        elif how == "reject":
            engine.operations.fail(queue, (entry,), consumer)
            outcome, status = "rejected", "failed"
        else:
            costs = how != "release"
            engine.operations.put_back(queue, (entry,), consumer, costs_attempt=costs, lease_expired=how == "expire")
            outcome = {"requeue": "rejected", "release": "released", "expire": "expired"}[how]
            status = "available"
        if spent:
            outcome, status = "failed", "failed"
        self.model.attempts.append(
            Ended(entry.id, name, consumer, claimed, self.clock.now_ms(), number, outcome, report)
        )
        self.model.left(entry.id, name, status)

    def some_report(self) -> TaskReport | None:
        state = self.random.choice((None, *TaskState))
        if state is None or state is TaskState.SUCCEEDED:
            return None if state is None else TaskReport(state, 5, 6)
        texts = self.random.choice((("", ""), ("no", ""), ("no", "Traceback: …")))
        return TaskReport(state, 5, 6, "", self.random.choice(EXCEPTIONS), *texts)

    async def finish(self) -> None:
        """Some started tasks are reported."""
        for _ in range(min(len(self.running), self.random.randrange(1, 4))):
            name, id, token, consumer, number = self.running.pop(self.random.randrange(len(self.running)))
            report = self.some_report() or TaskReport(TaskState.LOST)
            assert self.engine.task_runs.finish((name, id, token), report) is not None
            assert self.engine.task_runs.finish((name, id, token), report) is None
            now = self.clock.now_ms()
            self.model.attempts.append(Ended(id, name, consumer, min(token, now), now, number, "acked", report))
            self.model.left(id, name, "done")

    async def purge(self) -> None:
        name = self.random.choice(QUEUES)
        for known in self.model.messages.values():
            if known.statuses.get(name) == "available":
                self.model.left(known.id, name, "removed")
        await self.engine.definitions.purge(self.queue(name))
        await self.engine.commits.checkpoint()  # until then what is in no queue is still stored

    async def pause(self) -> None:
        self.clock.advance(self.random.choice((1, 1, 10, 1000)))

    async def checkpoint(self) -> None:
        await self.engine.commits.checkpoint()

    async def index(self) -> None:
        await self.engine.history.indexer.work(self.random.choice((0.0, 0.0, 0.001, 0.05)))

    async def merge(self) -> None:
        await self.engine.history.sweeper.merge_some()
        await self.engine.history.sweep(self.clock.now_ms())

    async def crash_now(self) -> None:
        await self.engine.commits.commit()
        await self.crash()
        await self.introduce()

    # ------------------------------------------------------------------ what the lists must say
    def wanted_messages(self, filters: ListFilters) -> list[int]:
        found = []
        for known in self.model.messages.values():
            places = [
                status for queue, status in known.statuses.items()
                if (not filters.queues or queue in filters.queues)
                and (not filters.statuses or status in filters.statuses)
            ]  # fmt: skip
            if known.gone or not places and (filters.queues or filters.statuses):
                continue
            if filters.ids and known.id not in filters.ids:
                continue
            if filters.has_time(known.received) and filters.header_test()(known.headers):
                found.append(known.id)
        return found

    def wanted_attempts(self, filters: ListFilters) -> list[int]:
        found = []
        for number, one in enumerate(self.model.attempts):
            wanted = (
                (filters.queues, one.queue), (filters.outcomes, one.outcome), (filters.consumers, one.consumer),
                (filters.ids, one.message_id), (filters.states, one.state),
                (filters.exceptions, one.report.exception if one.report is not None else ""),
            )  # fmt: skip
            if any(chosen and value not in chosen for chosen, value in wanted):
                continue
            if filters.has_time(one.ended) and filters.header_test()(self.model.messages[one.message_id].headers):
                found.append(number)
        return found

    # ------------------------------------------------------------------ looking
    async def look(self) -> None:
        kind = self.random.choice((query.MESSAGES, query.ATTEMPTS))
        filters = self.some_filters(kind)
        wanted = self.wanted_messages(filters) if kind == query.MESSAGES else self.wanted_attempts(filters)
        descending = self.random.random() < 0.5
        if descending:
            wanted.reverse()
        await self.page_through(kind, filters, wanted, descending)

    def some_filters(self, kind: str) -> ListFilters:
        pick = self.random
        given: dict[str, Any] = {}
        if pick.random() < 0.4:
            given["queues"] = pick.sample(QUEUES, pick.randrange(1, 3))
        if pick.random() < 0.4:
            given["headers"] = pick.choice(
                [
                    {"task": [pick.choice(TASKS)]},
                    {"task": pick.sample(TASKS, 2), "parity": ["0"]},
                    {"id": [f"id-{pick.randrange(self.number + 1)}"]},
                    {"id": ["nobody"]},
                ]
            )
        if pick.random() < 0.2:
            given["ids"] = pick.sample(sorted(self.model.messages) or [1], min(3, len(self.model.messages) or 1))
        if pick.random() < 0.4:
            if kind == query.MESSAGES:
                given["statuses"] = pick.sample(query.MESSAGE_STATUSES, pick.randrange(1, 3))
            else:
                given["outcomes"] = pick.sample(query.ATTEMPT_OUTCOMES, pick.randrange(1, 3))
        if kind == query.ATTEMPTS and pick.random() < 0.2:
            given["consumers"] = ["worker-1"]
        if kind == query.ATTEMPTS and pick.random() < 0.3:
            given["states"] = pick.sample(query.TASK_STATES, pick.randrange(1, 3))
        if kind == query.ATTEMPTS and pick.random() < 0.2:
            given["exceptions"] = pick.sample(EXCEPTIONS[1:], pick.randrange(1, 3))
        if pick.random() < 0.3:
            times = [known.received for known in self.model.messages.values()] or [0]
            given[pick.choice(("gte", "gt"))] = pick.choice(times) + pick.choice((-1, 0, 0, 1))
            given[pick.choice(("lte", "lt"))] = pick.choice(times) + pick.choice((-1, 0, 0, 1))
        return query.check_filters(**given)

    async def page_through(self, kind: str, filters: ListFilters, wanted: list[int], descending: bool) -> None:
        limit = self.random.choice((1, 2, 3, 7, 50))
        order = "desc" if descending else "asc"
        seen: list[list[int]] = []
        after = None
        while True:
            page = await self.page(kind, filters, order, limit, after, None)
            seen.append([number_of(one) for one in page.items])
            assert (page.prev is None) == (after is None or not page.items)
            if page.next is None:
                break
            last, after = page, page.next
        assert [number for some in seen for number in some] == wanted, (kind, filters, order, limit)
        assert all(len(some) == limit for some in seen[:-1])
        if len(seen) > 1 and page.prev is not None:
            before = await self.page(kind, filters, order, limit, None, page.prev)
            assert [number_of(one) for one in before.items] == seen[-2]
            assert before.next == last.next
            assert (before.prev is None) == (len(seen) == 2)
        for one in page.items[:2]:
            self.check_item(one)

    async def page(self, kind: str, filters: ListFilters, order: str, limit: int, after: Any, before: Any) -> Any:
        paging = query.check_paging(kind, filters, order=order, limit=limit, after=after, before=before)
        history = self.engine.history
        return await (history.list_messages if kind == query.MESSAGES else history.list_attempts)(filters, paging)

    def check_item(self, one: MessageInfo | AttemptInfo) -> None:
        if isinstance(one, MessageInfo):
            known = self.model.messages[one.id]
            assert {status.queue: status.status for status in one.queues} == known.statuses
            assert one.headers == known.headers
        else:
            wanted = self.model.attempts[number_of(one)]
            shown = (one.message_id, one.queue, one.consumer, one.claimed_at_ms, one.ended_at_ms, one.number)
            assert (*shown, one.outcome) == wanted[:-1]
            report = wanted.report
            texts = one.error, one.traceback
            if report is None:
                assert (one.state, one.exception, texts) == ("", "", ("", ""))
            else:
                assert (one.state, one.runtime_ms, one.pid) == (
                    STATES[report.state],
                    report.runtime_us / 1000,
                    report.pid,
                )
                assert one.exception == report.exception
                assert texts == (report.error, "")


def number_of(one: MessageInfo | AttemptInfo) -> int:
    return one.id if isinstance(one, MessageInfo) else query.attempt_number(one.id)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
@example(seed=759622)  # messages are collected before their attempts are indexed
def test_pages_say_what_happened(seed: int) -> None:
    root = Path(tempfile.mkdtemp(prefix="odq-history-"))

    async def main() -> None:
        story = Story(root / "store", seed)
        await story.begin()
        for _ in range(60):
            await story.step()
            if story.random.random() < 0.3:
                await story.look()
        for _ in range(5):
            await story.look()
        await story.engine.close()

    try:
        asyncio.run(main())
    finally:
        shutil.rmtree(root, ignore_errors=True)
