"""Actions on failures: retry, delete, archive; deletion of settled messages."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ...errors import MessageNotFound, PreconditionFailed
from ...protocol import messages as m
from ...queue_client.queries import FailureFilters
from ..brokers import UserBroker
from .action import Action, ActionOutcome, ActionProgress, Parameters, Preview, Report, counted, words
from .message_actions import MAX_IDS
from .queue_actions import QueueParameters

_LISTS = ("queues", "tasks", "exceptions", "reasons", "workers", "kinds", "task_ids")

#: stands for failures without a task, an exception, a reason or a worker, where an empty value means any
NONE = "(none)"
_PLACE = re.compile(r"\d{1,19} .+", re.DOTALL)


def without_none(value: str) -> str:
    """Return a value as the broker's filters expect it."""
    return "" if value == NONE else value


class FailureParameters(Parameters):
    """Filters of failures, as in :class:`.FailureFilters`.

    No filter means all failures; "(none)" means failures without such a value.
    """

    queues: list[str] = Field(default_factory=list, title="Queues")
    tasks: list[str] = Field(default_factory=list, title="Tasks")
    exceptions: list[str] = Field(default_factory=list, title="Exceptions")
    reasons: list[str] = Field(default_factory=list, title="Reasons")
    workers: list[str] = Field(default_factory=list, title="Workers")
    kinds: list[str] = Field(default_factory=list, title="Kinds")
    ids: list[int] | None = Field(None, title="Messages", max_length=MAX_IDS)
    selected: list[str] | None = Field(
        None, title="Selected", description='each as "7 billing": a message id and its queue', max_length=MAX_IDS
    )
    task_ids: list[str] = Field(default_factory=list, title="Task ids", max_length=MAX_IDS)
    where: str = Field("", title="Filter")
    since: datetime | None = Field(None, title="Failed at or after")
    until: datetime | None = Field(None, title="Failed at or before")

    @field_validator("ids", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        return words(value)

    @field_validator("selected")
    @classmethod
    def _places(cls, value: list[str] | None) -> list[str] | None:
        for place in value or ():
            if not _PLACE.fullmatch(place):
                raise ValueError(f"{place!r} is not a message id, a space and the name of a queue")
        return value

    @field_validator(*_LISTS, "selected", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        return ([value] if value else []) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _zones(self) -> FailureParameters:
        for name in ("since", "until"):
            at = getattr(self, name)
            if at is not None and at.tzinfo is None:
                setattr(self, name, at.replace(tzinfo=UTC))
        return self

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
        arguments: dict[str, Any] = {
            name: [without_none(text) for text in values] for name in _LISTS if (values := getattr(self, name))
        }
        if self.ids is not None:
            arguments["ids"] = self.ids
        if self.where:
            arguments["where"] = self.where
        if self.since is not None:
            arguments["gte"] = self.since
        if self.until is not None:
            arguments["lte"] = self.until
        filters: FailureFilters = arguments  # type: ignore[assignment]
        return filters


class RetryParameters(FailureParameters):
    target: str = Field("", title="To the queue", description="empty means: their own")


async def _count(broker: UserBroker, given: FailureParameters) -> tuple[int, bool]:
    answers = [await broker.client.group_failures(["queue"], **filters) for filters in given.filters()]
    return sum(group.count for answer in answers for group in answer.groups), all(answer.complete for answer in answers)


async def _preview(broker: UserBroker, given: FailureParameters, text: str) -> Preview:
    if [] in (given.ids, given.selected):
        return Preview("Nothing is selected.", 0, is_possible=False)
    count, complete = await _count(broker, given)
    if not count:
        return Preview("Nothing is left that failed and was not handled yet.", 0, is_possible=False)
    return Preview(f"{'' if complete else 'At least '}{counted(count, 'failure')} {text}", count)


async def preview_retry(broker: UserBroker, given: RetryParameters) -> Preview:
    return await _preview(broker, given, "will run again: failed messages with their ids, tasks with new ones.")


async def retry(broker: UserBroker, given: RetryParameters, report: Report) -> ActionOutcome:
    count, _ = await _count(broker, given)

    done = m.FailuresRetried(0)
    for filters in given.filters():

        def step(more: m.FailuresRetried, before: m.FailuresRetried = done) -> None:
            report(ActionProgress(before.handled + more.handled, count))

        done = done.plus(await broker.client.retry_failures(given.target, progress=step, **filters))
        if done.full:
            break
    remaining = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in done.left.items())
    if done.damage:
        remaining += f" ({done.damage})"
    if done.refused and not done.handled:
        raise PreconditionFailed(f"Nothing runs again: {remaining}.")
    text = f"{counted(done.handled, 'failure')} run again." + (f" Not: {remaining}." if remaining else "")
    if done.full:
        text += f" {done.full} is full: the rest stays."
    return ActionOutcome(text, {"redriven": done.redriven, "published": done.published, **done.left}, "failed")


async def preview_dismiss(broker: UserBroker, given: FailureParameters) -> Preview:
    return await _preview(broker, given, "will be deleted for good; attempts stay in the history.")


async def dismiss(broker: UserBroker, given: FailureParameters, report: Report) -> ActionOutcome:
    count, _ = await _count(broker, given)

    done = m.FailuresDismissed(0)
    for filters in given.filters():

        def step(more: m.FailuresDismissed, before: m.FailuresDismissed = done) -> None:
            report(ActionProgress(before.handled + more.handled, count))

        done = done.plus(await broker.client.dismiss_failures(progress=step, **filters))
    counts = {"deleted": done.deleted, "dismissed": done.dismissed}
    return ActionOutcome(f"{counted(done.handled, 'failure')} deleted.", counts, "failed")


class ArchiveFailedParameters(QueueParameters):
    where: str = Field("", title="Filter")
    ids: list[int] | None = Field(None, title="Messages", max_length=MAX_IDS)

    @field_validator("ids", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        return words(value)


async def preview_archive(broker: UserBroker, given: ArchiveFailedParameters) -> Preview:
    if given.ids == []:
        return Preview("Nothing is selected.", 0, is_possible=False)
    count = len(given.ids) if given.ids is not None else (await broker.client.metrics(given.queue)).failed
    prefix = "Those that match, of " if given.where else ""
    return Preview(f"{prefix}{counted(count, 'failed message')} of {given.queue} will be set aside, and kept.", count)


async def archive_failed(broker: UserBroker, given: ArchiveFailedParameters, _report: Report) -> ActionOutcome:
    count = await broker.client.archive_failed(given.queue, where=given.where, ids=given.ids)
    if given.ids and not count:
        raise MessageNotFound("Nothing was set aside: these are not failed messages of the queue.", queue=given.queue)
    return ActionOutcome(f"{counted(count, 'message')} set aside.", {"archived": count}, "queue", {"name": given.queue})


class DeleteSettledParameters(QueueParameters):
    state: Literal["done", "failed", "archived_failed"] = Field("done", title="Messages that are")
    older_than: float = Field(0, ge=0, title="Settled at least this many seconds ago", description="0 means all")


async def preview_settled(broker: UserBroker, given: DeleteSettledParameters) -> Preview:
    figures = await broker.client.metrics(given.queue)
    count: int = {"done": figures.done, "failed": figures.failed}.get(given.state, figures.archived_failed)
    prefix = "Of " if given.older_than else ""
    text = f"{prefix}{counted(count, given.state.replace('_', ' ') + ' message')} of {given.queue}, for good."
    return Preview(text, count)


async def delete_settled(broker: UserBroker, given: DeleteSettledParameters, _report: Report) -> ActionOutcome:
    selection: dict[str, Any] = {"older_than": given.older_than} if given.older_than else {"all": True}
    count = await broker.client.delete_settled(given.queue, given.state, **selection)
    return ActionOutcome(f"{counted(count, 'message')} deleted.", {"deleted": count}, "queue", {"name": given.queue})


_ALL = frozenset(FailureParameters.model_fields)
_IDS = frozenset(("queue", "ids"))
_QUEUE = frozenset(("queue",))
ACTIONS: tuple[Action[Any], ...] = (
    Action("retry", "Run again", m.RetryFailures, RetryParameters, preview_retry, retry, _ALL, is_long=True),
    Action(
        "dismiss", "Delete failures", m.DismissFailures, FailureParameters, preview_dismiss, dismiss, _ALL,
        is_dangerous=True, is_long=True,
    ),
    Action(
        "archive-failed", "Set aside", m.ArchiveFailed, ArchiveFailedParameters, preview_archive,
        archive_failed, _IDS, is_long=True,
    ),
    Action(
        "delete-settled", "Delete settled messages", m.DeleteSettled, DeleteSettledParameters, preview_settled,
        delete_settled,
        _QUEUE, "queue", is_dangerous=True, is_long=True,
    ),
)  # fmt: skip
