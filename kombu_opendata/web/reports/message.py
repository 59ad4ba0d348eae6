"""Report of one message: its contents, its states, and its attempts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from ...errors import AccessRefused, MessageNotFound, PreconditionFailed
from ...masking import Masking
from ...protocol.messages.history_messages import AttemptInfo
from ...queue_client.message_models import MessageState, StoredMessage, moment
from ..brokers import UserBroker
from .bodies import Body, body_of
from .identified import Identified

#: attempts of a message that are shown
_MOST = 100


@dataclass(frozen=True)
class AttemptRow:
    """An attempt that ended, or a current delivery.

    Attributes:
        outcome: the end of the attempt; empty while it is in progress.
        state: the outcome of the task, if a worker reported it.
    """

    queue: str
    number: int
    worker: str
    pid: int
    began_at: datetime | None
    ended_at: datetime | None
    seconds: float | None
    outcome: str
    state: str
    exception: str
    error: str
    traceback: str

    @property
    def is_good(self) -> bool:
        """True if the task succeeded or, without a report, the message was acknowledged."""
        return self.state == "succeeded" if self.state else self.outcome == "acked"


@dataclass(frozen=True)
class MessageReport(Identified):
    """A message; all fields but ``attempts`` are empty if it is no longer stored."""

    id: int
    task: str
    task_id: str
    body: Body | None
    headers: dict[str, str]
    properties: dict[str, str]
    exchange: str
    routing_key: str
    content_type: str
    created_at: datetime | None
    received_at: datetime | None
    visible_at: datetime | None
    states: tuple[MessageState, ...]
    attempts: tuple[AttemptRow, ...]


async def message_report(broker: UserBroker, masking: Masking, id: int) -> MessageReport:
    """Return a message, or its history if it is no longer stored.

    Raises:
        MessageNotFound: the message is neither stored nor in the history.
    """
    try:
        stored = await broker.client.get(id)
    except MessageNotFound:
        attempts = await message_attempts(broker, masking, id)
        if not attempts:
            raise
        return MessageReport(id, "", "", None, {}, {}, "", "", "", None, None, None, (), attempts)
    attempts = await _attempts_of(broker, masking, stored)
    # A thread, as a large body would delay other requests.
    return await asyncio.to_thread(_report, stored, masking, attempts)


def _report(stored: StoredMessage, masking: Masking, attempts: tuple[AttemptRow, ...]) -> MessageReport:
    message = stored.message
    headers = {name: str(value) for name, value in masking.value(message.headers).items() if value is not None}
    is_task = "task" in stored.metadata
    return MessageReport(
        message.id,
        stored.metadata.get("task", ""),
        stored.metadata.get("id", "") if is_task else "",
        body_of(message, masking),
        headers,
        {name: str(value) for name, value in masking.value(message.properties).items() if value is not None},
        message.exchange,
        message.routing_key,
        message.content_type,
        stored.created_at,
        stored.received_at,
        stored.visible_at,
        stored.states,
        attempts,
    )


async def _attempts_of(broker: UserBroker, masking: Masking, stored: StoredMessage) -> tuple[AttemptRow, ...]:
    """Return the attempts of a stored message in all queues, or in its current ones if the user may not see all."""
    id = stored.message.id
    with suppress(AccessRefused):
        return await message_attempts(broker, masking, id)
    with suppress(AccessRefused):
        return await message_attempts(broker, masking, id, [state.queue for state in stored.states])
    return ()


async def message_attempts(
    broker: UserBroker, masking: Masking, id: int, queues: list[str] | None = None
) -> tuple[AttemptRow, ...]:
    """Return the ended attempts of a message, the oldest first; none if the broker keeps no history."""
    client = broker.client
    list_page = partial(client.list_attempts, message_ids=[id], queues=queues, order="asc", limit=_MOST)
    try:
        try:
            page = await list_page(tracebacks=True)
        except AccessRefused:
            page = await list_page()
    except PreconditionFailed:
        return ()
    return tuple(attempt_of(attempt, masking) for attempt in page.items)


def attempt_of(one: AttemptInfo, masking: Masking) -> AttemptRow:
    """Return an attempt of the history, with masked texts."""
    seconds = one.runtime_ms / 1000 if one.state else max(one.ended_at_ms - one.claimed_at_ms, 0) / 1000
    return AttemptRow(
        one.queue, one.number, one.consumer, one.pid, moment(one.claimed_at_ms), moment(one.ended_at_ms), seconds,
        one.outcome, one.state, one.exception, masking.text(one.error), masking.text(one.traceback),
    )  # fmt: skip
