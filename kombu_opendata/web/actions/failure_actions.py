"""Actions on failures: retry, delete, archive; deletion of settled messages."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from ...errors import MessageNotFound, PreconditionFailed
from ...protocol import messages as m
from ...queue_client.history import D
from ...queue_client.queries import FailureFilters
from ...readable_text import counted
from ..user_clients import UserBroker
from .action import MAX_IDS, ActionOutcome, ActionProgress, Parameters, Preview, Report, SomeIds, action
from .queue_actions import OnQueue

#: selects failures without a task, an exception, a reason or a worker, because an empty value selects all
NONE = "(none)"
_LISTS = ("queues", "tasks", "exceptions", "reasons", "workers", "kinds", "task_ids")
_PLACE = re.compile(r"\d{1,19} .+", re.DOTALL)


def without_none(value: str) -> str:
    """Return a value as the broker's filters expect it."""
    return "" if value == NONE else value


def _texts(value: Any) -> Any:
    return ([value] if value else []) if isinstance(value, str) else value


Texts = Annotated[list[str], BeforeValidator(_texts)]


class OnFailures(Parameters):
    """An action on failures. Its filters are as in :class:`.FailureFilters`.

    No filter means all failures; "(none)" means failures without such a value.
    """

    queues: Texts = Field(default_factory=list, title="Queues")
    tasks: Texts = Field(default_factory=list, title="Tasks")
    exceptions: Texts = Field(default_factory=list, title="Exceptions")
    reasons: Texts = Field(default_factory=list, title="Reasons")
    workers: Texts = Field(default_factory=list, title="Workers")
    kinds: Texts = Field(default_factory=list, title="Kinds")
    ids: SomeIds = Field(None, title="Messages")
    selected: Annotated[list[str] | None, BeforeValidator(_texts)] = Field(
        None, title="Selected", description='each as "7 billing": a message id and its queue', max_length=MAX_IDS
    )
    task_ids: Texts = Field(default_factory=list, title="Task ids", max_length=MAX_IDS)
    where: str = Field("", title="Filter")
    since: datetime | None = Field(None, title="Failed at or after")
    until: datetime | None = Field(None, title="Failed at or before")

    @field_validator("selected")
    @classmethod
    def _places(cls, value: list[str] | None) -> list[str] | None:
        for place in value or ():
            if not _PLACE.fullmatch(place):
                raise ValueError(f"{place!r} is not a message id, a space and the name of a queue")
        return value

    @field_validator("since", "until")
    @classmethod
    def _zones(cls, value: datetime | None) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value

    def filters(self) -> list[FailureFilters]:
        """Return the filters for the client's calls: one for each queue, if failures are selected."""
        if self.selected is None:
            return [self._common()]
        ids: dict[str, list[int]] = {}
        for place in self.selected:
            id, _, queue = place.partition(" ")
            ids.setdefault(queue, []).append(int(id))
        return [self._common() | {"queues": [queue], "ids": queue_ids} for queue, queue_ids in ids.items()]

    def _common(self) -> FailureFilters:
        arguments: Any = {
            name: [without_none(text) for text in values] for name in _LISTS if (values := getattr(self, name))
        }
        others = {"where": self.where or None, "ids": self.ids, "gte": self.since, "lte": self.until}
        filters: FailureFilters = arguments | {name: value for name, value in others.items() if value is not None}
        return filters

    async def count(self, broker: UserBroker) -> tuple[int, bool]:
        """Return the number of failures, and whether all are counted."""
        answers = [await broker.client.group_failures(["queue"], **filters) for filters in self.filters()]
        total = sum(group.count for answer in answers for group in answer.groups)
        return total, all(answer.complete for answer in answers)

    async def effect_on(self, broker: UserBroker) -> Preview:
        count, complete = await self.count(broker)
        if not count:
            return Preview("No unhandled failures.", 0, is_possible=False)
        return Preview(f"{'' if complete else 'At least '}{counted(count, 'failure')} {self.effect}", count)

    async def in_steps(self, broker: UserBroker, report: Report, done: D, call: Callable[..., Awaitable[D]]) -> D:
        """Make the call for all failures, and report its progress; stop if a queue is full."""
        count, _ = await self.count(broker)
        for filters in self.filters():

            def step(more: D, before: int = done.handled) -> None:
                report(ActionProgress(before + more.handled, count))

            done = done.plus(await call(progress=step, **filters))
            if done.values.get("full"):
                break
        return done


def retry_outcome(done: m.FailuresRetried, path: str, query: Mapping[str, Any] | None = None) -> ActionOutcome:
    """Return the outcome of a retry, which leads to a view; raise PreconditionFailed if nothing could be retried."""
    left = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in done.left.items())
    if done.damage:
        left += f" ({done.damage})"
    if done.refused and not done.handled:
        raise PreconditionFailed(f"Nothing was retried: {left}.")
    text = f"{counted(done.handled, 'failure')} retried." + (f" Not: {left}." if left else "")
    if done.full:
        text += f" {done.full} is full: the rest stays."
    counts = {"redriven": done.redriven, "published": done.published, **done.left}
    return ActionOutcome(text, counts, path, query or {})


@action("retry", "Retry", m.RetryFailures, " ".join(OnFailures.model_fields), is_long=True)
class RetryAction(OnFailures):
    target: str = Field("", title="To the queue", description="empty means: their own")
    effect = "will be retried: failed messages become ready, acknowledged tasks are published again."

    async def perform_in_steps(self, broker: UserBroker, report: Report) -> ActionOutcome:
        retry = partial(broker.client.retry_failures, self.target)
        done = await self.in_steps(broker, report, m.FailuresRetried(0), retry)
        return retry_outcome(done, "failed")


@action(
    "delete-failures",
    "Delete failures",
    m.DeleteFailures,
    " ".join(OnFailures.model_fields),
    is_dangerous=True,
    is_long=True,
)
class DeleteFailuresAction(OnFailures):
    effect = "will be deleted for good; attempts stay in the history."

    async def perform_in_steps(self, broker: UserBroker, report: Report) -> ActionOutcome:
        done = await self.in_steps(broker, report, m.FailuresDeleted(0), broker.client.delete_failures)
        counts = {"deleted": done.deleted, "dismissed": done.dismissed}
        return ActionOutcome(f"{counted(done.handled, 'failure')} deleted.", counts, "failed")


@action("archive-failed", "Archive", m.ArchiveFailed, "queue ids", is_long=True)
class ArchiveFailedAction(OnQueue):
    where: str = Field("", title="Filter")
    ids: SomeIds = Field(None, title="Messages")

    async def effect_on(self, broker: UserBroker) -> Preview:
        count = len(self.ids) if self.ids is not None else (await broker.client.metrics(self.queue)).failed
        prefix = "Those that match, of " if self.where else ""
        text = f"{prefix}{counted(count, 'failed message')} of {self.queue} will be archived until they are deleted."
        return Preview(text, count)

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        count = await broker.client.archive_failed(self.queue, where=self.where, ids=self.ids)
        if self.ids and not count:
            raise MessageNotFound("Nothing was archived: these are not failed messages of the queue.", queue=self.queue)
        return self.outcome(f"{counted(count, 'message')} archived.", {"archived": count})


@action(
    "delete-settled",
    "Delete settled messages",
    m.DeleteSettled,
    "queue",
    typed="queue",
    is_dangerous=True,
    is_long=True,
)
class DeleteSettledAction(OnQueue):
    state: Literal["done", "failed", "archived_failed"] = Field("done", title="Messages that are")
    older_than: float = Field(0, ge=0, title="Settled at least this many seconds ago", description="0 means all")

    async def effect_on(self, broker: UserBroker) -> Preview:
        count: int = getattr(await broker.client.metrics(self.queue), self.state)
        prefix = "Of " if self.older_than else ""
        state = self.state.replace("_", " ")
        return Preview(f"{prefix}{counted(count, f'{state} message')} of {self.queue}, for good.", count)

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        selection: dict[str, Any] = {"older_than": self.older_than} if self.older_than else {"all": True}
        count = await broker.client.delete_settled(self.queue, self.state, **selection)
        return self.outcome(f"{counted(count, 'message')} deleted.", {"deleted": count})
