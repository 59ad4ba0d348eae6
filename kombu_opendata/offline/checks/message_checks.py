"""Invariants of each message, and of its payload outside of its record.

To add a check, write a method of :class:`MessageChecks`, and call it in :meth:`~MessageChecks.run`; for a scheme of
payload URIs, in :meth:`~MessageChecks.payload_place`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...storage.records import keys, payload
from ...storage.records.keys import RecordKind
from ...storage.records.payload import CHUNK_BYTES, PayloadURI
from ...storage.records.payload_places import parse_payload_uri
from ..records.message_facts import ARCHIVED, AVAILABLE, BUCKETS, FAILED, IN_FLIGHT, MessageFacts, QueueMembership
from .family import SLACK_MS, CheckContext

_REASONS = frozenset({"rejected", "expired", "maxlen", "delivery_limit", "revoked"})
_NEEDED_BY = (*BUCKETS, RecordKind.DEAD_LETTER)


class MessageChecks:
    """Checks of one message, which report findings to the context."""

    def __init__(self, facts: MessageFacts, context: CheckContext) -> None:
        self._facts, self._context = facts, context
        self._metadata_key = keys.metadata_key(facts.id)
        self._payload_key = keys.payload_key(facts.id)

    def run(self) -> None:
        self.once()
        self.complete()
        self.wanted()
        self.payload_place()
        self.routes()
        self.identity()
        self.times()
        self.dead_letters()

    def _add(self, code: str, text: str, key: bytes = b"", queue: str | None = None) -> None:
        self._context.add(code, text, key=key, queue=queue, message_id=self._facts.id)

    def once(self) -> None:
        """Check that a message is at most once in each queue, in one state."""
        facts = self._facts
        if len(facts.places) < 2:
            return
        for queue, count in Counter(place.queue for place in facts.places).items():
            if count > 1:
                places = (place for place in facts.places if place.queue == queue)
                states = ", ".join(f"{place.state} (bucket {place.bucket})" for place in places)
                text = f"message {facts.id} is in queue {queue!r} {count} times: {states}"
                self._add("message-twice", text, queue=queue)

    def complete(self) -> None:
        """Check that a message in a queue, or a dead letter, has metadata and a payload."""
        facts = self._facts
        if facts.metadata is not None and facts.payload is not None:
            return
        if not facts.needs and not facts.letters and not facts.is_kept:
            return
        queue = None
        where = "kept by the log"
        if facts.places:
            queue = facts.places[0].queue
            where = f"{facts.places[0].state} in queue {queue!r}"
        elif facts.letters:
            queue = facts.letters[0][0]
            where = f"a dead letter in queue {queue!r}"
        for code, kind, value, key in (
            ("metadata-missing", RecordKind.METADATA, facts.metadata, self._metadata_key),
            ("payload-missing", RecordKind.PAYLOAD, facts.payload, self._payload_key),
        ):
            if value is None and kind not in facts.corrupt and self._context.store.can_tell(key):
                self._add(code, f"message {facts.id} ({where}) has no {kind.value}", key, queue)

    def wanted(self) -> None:
        """Check that a queue or the log needs a message that has records."""
        facts = self._facts
        if facts.places or facts.letters or facts.is_kept or not self._context.sees(*_NEEDED_BY):
            return
        records = {
            "payload": (facts.payload, self._payload_key),
            "metadata": (facts.metadata, self._metadata_key),
            "chunk": (facts.chunks or None, keys.chunk_key(facts.id, 0)),
            "attempts": (facts.attempts, keys.attempts_key(facts.id)),
            "routes": (facts.routes, keys.routes_block_key(facts.id)),
        }
        names = {name: key for name, (value, key) in records.items() if value is not None}
        if names:
            text = f"message {facts.id} is in no queue, but it has records: {', '.join(names)}"
            self._add("message-orphan", text, next(iter(names.values())))

    def payload_place(self) -> None:
        """Check that a payload is in its record, or at the location in its record."""
        facts = self._facts
        if isinstance(facts.payload, PayloadURI):
            uri = facts.payload.uri
            scheme = uri.partition(":")[0]
            if scheme == "chunks":
                self._check_chunks(uri)
            elif scheme in ("batch", "segment"):
                self._check_batch(uri)
            else:
                self._add_uri(uri, "which has an unknown scheme")
        elif isinstance(facts.payload, bytes) and facts.chunks:
            text = f"message {facts.id} has its payload in one record, but also {len(facts.chunks)} chunks"
            self._add("chunks-wrong", text, keys.chunk_key(facts.id, facts.chunks[0][0]))

    def _add_uri(self, uri: str, problem: str) -> None:
        self._add("payload-uri", f"the payload of message {self._facts.id} is at {uri!r}, {problem}", self._payload_key)

    def _check_chunks(self, uri: str) -> None:
        """Check that a message has exactly the chunk records that the URI describes."""
        id, parsed = self._facts.id, payload.parse_chunks_uri(uri)
        if parsed is None:
            self._add_uri(uri, "which is not a list of chunks")
            return
        count, size = parsed
        if -(-size // CHUNK_BYTES) != count:
            text = f"message {id} has {size} bytes in {count} chunks of {CHUNK_BYTES}"
            self._add("chunks-wrong", text, self._payload_key)
            return
        expected = {number: min(CHUNK_BYTES, size - number * CHUNK_BYTES) for number in range(count)}
        sizes = dict(self._facts.chunks)
        if sizes == expected:
            return
        wrong = sorted(number for number in expected.keys() | sizes.keys() if expected.get(number) != sizes.get(number))
        missing = [number for number in wrong if number not in sizes]
        can_tell = self._context.store.can_tell
        if missing == wrong and not all(can_tell(keys.chunk_key(id, number)) for number in missing):
            return
        text = (
            f"chunk {wrong[0]} of message {id} has {sizes.get(wrong[0], 'no')} bytes instead of "
            f"{expected.get(wrong[0], 'none')}; {len(wrong)} of {count} chunks are wrong"
        )
        self._add("chunks-wrong", text, keys.chunk_key(id, wrong[0]))

    def _check_batch(self, uri: str) -> None:
        """Check that the payload is at its place in a batch object or a segment."""
        id, place = self._facts.id, parse_payload_uri(uri)
        if place is None:
            self._add_uri(uri, "which is not a position in a staged batch")
            return
        self._context.use_segment(place)
        self._context.check_place(place, f"the payload of message {id}", id, key=self._payload_key, message_id=id)

    def routes(self) -> None:
        """Check that a message that several queues need, or that is in chunks, has a count of its uses."""
        facts = self._facts
        if facts.routes is None and len(facts.places) == 1 and not facts.letters and not facts.chunks:
            return
        if not facts.needs or not self._context.sees(*_NEEDED_BY) or RecordKind.ROUTES_BLOCK in facts.corrupt:
            return
        key = keys.routes_block_key(facts.id)
        subject = f"message {facts.id} is needed {facts.needs} times"
        if facts.routes is None:
            if (facts.needs > 1 or facts.chunks) and self._context.store.can_tell(key):
                self._add("routes-wrong", f"{subject}, has {len(facts.chunks)} chunks, but no count", key)
        elif facts.is_kept:
            self._add("routes-wrong", f"{subject}, but its count has it kept by the log only", key)
        elif facts.routes != facts.needs:
            self._add("routes-wrong", f"{subject}, but its count is {facts.routes}", key)

    def identity(self) -> None:
        """Check that the metadata belongs to this message, and that the id has been assigned."""
        facts, end = self._facts, self._context.block_end
        if facts.metadata is not None and facts.metadata.message_id != facts.id:
            text = f"the metadata of message {facts.id} names message {facts.metadata.message_id}"
            self._add("key-value-mismatch", text, self._metadata_key)
        if end is not None and facts.id >= end:
            text = f"message {facts.id} exists, but ids from {end} on have not been assigned yet"
            self._add("sequence-behind", text, keys.SEQ_BLOCK_KEY)

    def times(self) -> None:
        id, metadata = self._facts.id, self._facts.metadata
        if metadata is None:
            return
        received, visible = metadata.received_at_ms, metadata.visible_at_ms
        if not self._context.is_plausible(received):
            self._add("time-implausible", f"message {id} was received at {received} ms", self._metadata_key)
        if visible < received:
            text = f"message {id} was visible at {visible} ms, before it was received at {received} ms"
            self._add("entry-implausible", text, self._metadata_key)
        for place in self._facts.places:
            wrong = "; ".join(_entry(place, received, self._context.now_ms + SLACK_MS))
            if wrong:
                text = f"message {id}, {place.state} in queue {place.queue!r} (bucket {place.bucket}): {wrong}"
                self._add("entry-implausible", text, queue=place.queue)

    def dead_letters(self) -> None:
        """Check that a dead letter left its queue: no queue entry needs the payload, or only the failed list does."""
        facts, context = self._facts, self._context
        for queue, letter in facts.letters:
            states = [place.state for place in facts.places if place.queue == queue]
            wrong = []
            if letter.reason not in _REASONS:
                wrong.append(f"its reason is {letter.reason!r}")
            if letter.last_use and states:
                wrong.append(f"it is the last use of the payload, but the message is {states[0]} there")
            is_failed = states in ([FAILED], [ARCHIVED])
            if not letter.last_use and not is_failed and context.sees(RecordKind.FAILED, RecordKind.ARCHIVED_FAILED):
                wrong.append("the payload is kept for the queue's failed list, but the message is not there")
            if not context.is_plausible(letter.at_ms):
                wrong.append(f"it left at {letter.at_ms} ms")
            if wrong:
                text = f"the dead letter of message {facts.id} from queue {queue!r}: {'; '.join(wrong)}"
                self._add("dead-letter-wrong", text, keys.dead_letter_key(facts.id, queue), queue)


def _entry(place: QueueMembership, received: int, latest: int) -> Iterator[str]:
    if place.state == AVAILABLE:
        _id, _priority, visible, deadline, _attempts = place.entry
        if visible < received:
            yield f"visible at {visible} ms, received at {received} ms"
        if deadline and deadline < received:
            yield f"expires at {deadline} ms, received at {received} ms"
    elif place.state == IN_FLIGHT:
        _id, _priority, claimed, until, attempts = place.entry
        if claimed < received or claimed > latest or until < claimed:
            yield f"claimed at {claimed} ms until {until} ms, received at {received} ms"
        if not attempts:
            yield "claimed in 0 attempts"
    elif place.entry[1] < received or place.entry[1] > latest:
        yield f"settled at {place.entry[1]} ms, received at {received} ms"
