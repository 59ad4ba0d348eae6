"""Calls that read messages without claiming them: peek, pages by state, a message by its id."""

from __future__ import annotations

from msgspec.structs import replace

from ....errors import CorruptRecord, RequestError
from ....protocol import messages as m
from ....protocol.envelope import headers_in
from ....protocol.permissions import ALL_EXCHANGES
from ....storage.clock import TimeSlice
from ....storage.commit.commits import Commits
from ....storage.history.service import History
from ....storage.messages.payloads import Payloads
from ....storage.read.queue_pages import AVAILABLE, DELAYED, STATES, QueuePages, Row
from ...access.rights import Rights
from ...delivery.queue_registry import Queues
from ...model.queue import BrokerQueue
from ..contents import shown_envelope, shown_headers
from ..dispatch import BrokerCalls, Context, check_range, handles
from .claimed_messages import MAX_PAGE, PAGE_BYTES
from .settle import Holders

#: the maximum number of buckets that a search for a message by its id reads
_MAX_READS = 128


class PeekCalls(BrokerCalls):
    """Calls that read messages without claiming them."""

    _holders: Holders
    _queues: Queues
    _payloads: Payloads
    _pages: QueuePages
    _commits: Commits
    _history: History

    @handles(m.Peek)
    async def peek(self, call: Context, msg: m.Peek) -> m.Peeked:
        check_range("the limit of a page", msg.limit, 1, MAX_PAGE)
        queue, is_readable = call.queue(msg.queue), call.session.rights.read[msg.queue]
        rows, after = await queue.page((AVAILABLE, DELAYED), msg.after, msg.limit)
        peeked: list[tuple[m.StateRow, int, bytes]] = []
        errors: dict[int, m.Refusal] = {}
        size = 0
        for row in rows:
            try:
                message = await queue.peek(row.id)
            except CorruptRecord as exc:
                message = (0, b"")
                errors[row.id] = _refusal(exc)
            if message is None:
                continue  # settled during the read
            received, envelope = message
            peeked.append((self._holders.row(row), received, envelope if is_readable else shown_envelope(envelope)))
            size += len(envelope)
            if size >= PAGE_BYTES:
                break
        return m.Peeked(msg.rid, peeked, size >= PAGE_BYTES or after >= 0, errors)

    @handles(m.ListByState)
    async def list_by_state(self, call: Context, msg: m.ListByState) -> m.MessageStatePage:
        check_range("the limit of a page", msg.limit, 1, MAX_PAGE)
        if msg.state not in STATES:
            raise RequestError(f"a message's state is one of {', '.join(STATES)}, not {msg.state!r}")
        rows, after = await call.queue(msg.queue).page((msg.state,), msg.after, msg.limit)
        return m.MessageStatePage(msg.rid, [self._holders.row(row) for row in rows], after)

    @handles(m.GetMessage)
    async def get_message(self, call: Context, msg: m.GetMessage) -> m.FoundMessage:
        check_range("a message id", msg.id, 0, (1 << 63) - 1)
        queues = [call.queue(msg.queue)] if msg.queue else None
        envelope, error = await self._read(msg.id)
        about = await self._pages.metadata_of(msg.id)
        if about is None and envelope is not None:
            await self._commits.checkpoint()  # a staged row that has only just reached its queue
            about = await self._pages.metadata_of(msg.id)
        if queues is None:
            queues = await self._queues_of(msg.id)
        states: list[tuple[str, Row]] = []
        created, received, visible = 0, 0, 0
        if about is not None:
            created, received, visible = about.created_at_ms, about.received_at_ms, about.visible_at_ms
        reads_left = _MAX_READS
        async for queue in TimeSlice().over(queues):
            row, envelope, reads_left = await queue.locate(msg.id, envelope, received, reads_left)
            if row is not None:
                states.append((queue.name, row))
        if not states and reads_left > 0 and envelope is not None:
            await self._commits.checkpoint()  # it may have only just left its last queue
            envelope, error = (None, None) if msg.queue else await self._read(msg.id)
        headers: dict[str, str] = {}
        if about is not None:
            headers = about.headers
        elif envelope is not None:
            headers = headers_in(envelope, 255 - states[0][1].priority if states else 0) or {}
        rows = [(name, self._holders.row(row)) for name, row in states]
        reply = m.FoundMessage(msg.rid, envelope, headers, created, received, visible, rows, reads_left > 0, error)
        return _shown(call.session.rights, reply)

    async def _read(self, id: int) -> tuple[bytes | None, m.Refusal | None]:
        """Read a stored message; return an empty envelope and the reason if it is corrupt."""
        try:
            return await self._payloads.read(id), None
        except CorruptRecord as exc:
            return b"", _refusal(exc)

    async def _queues_of(self, id: int) -> list[BrokerQueue]:
        """Return the queues that may hold a message: those in its history, or all if it has none."""
        queues, history = self._queues, self._history
        record = await history.message(id) if history.enabled else None
        if record is not None and record.queues:
            return [queues[status.queue] for status in record.queues if status.queue in queues]
        return list(queues.values())


def _shown(rights: Rights, reply: m.FoundMessage) -> m.FoundMessage:
    """Return the part of a message that these rights show: all of it if it is in a queue that may be read."""
    if rights.read[ALL_EXCHANGES]:
        return reply
    readable = [state for state in reply.states if rights.read[state[0]]]
    if "monitor" not in rights.roles:
        return replace(reply, states=readable) if readable else m.FoundMessage(reply.rid, None, {}, 0, 0, 0, [], True)
    if readable:
        return reply
    envelope = None if reply.envelope is None else shown_envelope(reply.envelope)
    return replace(reply, envelope=envelope, headers=shown_headers(reply.headers))


def _refusal(exc: CorruptRecord) -> m.Refusal:
    return exc.code, exc.text, exc.values
