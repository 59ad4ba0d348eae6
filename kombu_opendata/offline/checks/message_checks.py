"""Invariants of each message, and of its payload outside of its record.

To add a check, write a function of facts and context, and list it in ``CHECKS``; for a scheme of payload URIs, in
``SCHEMES``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from ...staging.batch_format import parse_payload_uri
from ...storage.records import keys, payload
from ...storage.records.keys import RecordKind
from ...storage.records.payload import CHUNK_BYTES, PayloadURI
from ..records.message_facts import ARCHIVED, AVAILABLE, BUCKETS, FAILED, IN_FLIGHT, MessageFacts, QueueMembership
from .family import CheckContext

MessageCheck = Callable[[MessageFacts, CheckContext], None]
UriCheck = Callable[[str, MessageFacts, CheckContext], None]

_REASONS = frozenset({"rejected", "expired", "maxlen", "delivery_limit", "revoked"})
_NEEDED_BY = (*BUCKETS, RecordKind.DEAD_LETTER)


def once(facts: MessageFacts, context: CheckContext) -> None:
    """Check that a message is at most once in each queue, in one state."""
    if len(facts.places) < 2:
        return
    for queue, count in Counter(place.queue for place in facts.places).items():
        if count > 1:
            states = ", ".join(
                f"{place.state} (bucket {place.bucket})" for place in facts.places if place.queue == queue
            )
            text = f"message {facts.id} is in queue {queue!r} {count} times: {states}"
            context.add("message-twice", text, queue=queue, message_id=facts.id)


def complete(facts: MessageFacts, context: CheckContext) -> None:
    """Check that a message in a queue, or a dead letter, has metadata and a payload."""
    if facts.metadata is not None and facts.payload is not None:
        return
    if not facts.needs and not facts.letters and not facts.is_kept:
        return
    queue = facts.places[0].queue if facts.places else facts.letters[0][0] if facts.letters else None
    state = facts.places[0].state if facts.places else "a dead letter" if facts.letters else "kept by the log"
    where = state if queue is None else f"{state} in queue {queue!r}"
    for code, kind, value, key in (
        ("metadata-missing", RecordKind.METADATA, facts.metadata, keys.metadata_key(facts.id)),
        ("payload-missing", RecordKind.PAYLOAD, facts.payload, keys.payload_key(facts.id)),
    ):
        if value is None and kind not in facts.corrupt and context.store.can_tell(key):
            text = f"message {facts.id} ({where}) has no {kind.value}"
            context.add(code, text, key=key, queue=queue, message_id=facts.id)


def wanted(facts: MessageFacts, context: CheckContext) -> None:
    """Check that a queue or the log needs a message that has records."""
    if facts.places or facts.letters or facts.is_kept or not context.sees(*_NEEDED_BY):
        return
    values = {
        RecordKind.PAYLOAD: facts.payload,
        RecordKind.METADATA: facts.metadata,
        RecordKind.CHUNK: facts.chunks or None,
        RecordKind.ATTEMPTS: facts.attempts,
        RecordKind.ROUTES_BLOCK: facts.routes,
    }
    kinds = [kind for kind, value in values.items() if value is not None]
    if kinds:
        names = ", ".join("routes" if kind is RecordKind.ROUTES_BLOCK else kind.value for kind in kinds)
        text = f"message {facts.id} is in no queue, but it has records: {names}"
        context.add("message-orphan", text, key=_key(kinds[0], facts), message_id=facts.id)


def _key(kind: RecordKind, facts: MessageFacts) -> bytes:
    id = facts.id
    if kind is RecordKind.ROUTES_BLOCK:
        return keys.routes_block_key(id)
    return keys.chunk_key(id, 0) if kind is RecordKind.CHUNK else kind.prefix + id.to_bytes(8, "big")


def payload_place(facts: MessageFacts, context: CheckContext) -> None:
    """Check that a payload is in its record, or at the location in its record."""
    if isinstance(facts.payload, PayloadURI):
        check_uri(facts.payload.uri, facts, context)
    elif isinstance(facts.payload, bytes) and facts.chunks:
        text = f"message {facts.id} has its payload in one record, but also {len(facts.chunks)} chunks"
        context.add("chunks-wrong", text, key=keys.chunk_key(facts.id, facts.chunks[0][0]), message_id=facts.id)


def check_chunks(uri: str, facts: MessageFacts, context: CheckContext) -> None:
    """Check that a message has exactly the chunk records that the URI describes."""
    key = keys.payload_key(facts.id)
    parsed = payload.parse_chunks_uri(uri)
    if parsed is None:
        text = f"the payload of message {facts.id} is at {uri!r}, which is not a list of chunks"
        context.add("payload-uri", text, key=key, message_id=facts.id)
        return
    count, size = parsed
    if -(-size // CHUNK_BYTES) != count:
        text = f"message {facts.id} has {size} bytes in {count} chunks of {CHUNK_BYTES}"
        context.add("chunks-wrong", text, key=key, message_id=facts.id)
        return
    expected = {number: min(CHUNK_BYTES, size - number * CHUNK_BYTES) for number in range(count)}
    sizes = dict(facts.chunks)
    if sizes == expected:
        return
    wrong = sorted(number for number in expected.keys() | sizes.keys() if expected.get(number) != sizes.get(number))
    missing = [number for number in wrong if number not in sizes]
    if missing == wrong and not all(context.store.can_tell(keys.chunk_key(facts.id, number)) for number in missing):
        return
    text = (
        f"chunk {wrong[0]} of message {facts.id} has {sizes.get(wrong[0], 'no')} bytes instead of "
        f"{expected.get(wrong[0], 'none')}; {len(wrong)} of {count} chunks are wrong"
    )
    context.add("chunks-wrong", text, key=keys.chunk_key(facts.id, wrong[0]), message_id=facts.id)


def check_batch(uri: str, facts: MessageFacts, context: CheckContext) -> None:
    """Check that the batch object exists and is large enough. ``StagedFamily`` reads it."""
    key, place = keys.payload_key(facts.id), parse_payload_uri(uri)
    if place is None:
        text = f"the payload of message {facts.id} is at {uri!r}, which is not a position in a staged batch"
        context.add("payload-uri", text, key=key, message_id=facts.id)
        return
    path, end = place.path, place.offset + place.length
    folder = context.store.location.staged
    if folder is None:
        return  # in a bucket, each object would cost a request
    try:
        size = (folder / path).stat().st_size
    except OSError as exc:
        if context.is_running:
            return  # the message may have been settled since, and the object removed
        text = f"the payload of message {facts.id} is in batch {path}, which can't be read: {exc.strerror}"
        context.add("batch-missing", text, key=key, message_id=facts.id)
        return
    if end > size:
        text = f"the payload of message {facts.id} ends at byte {end} of batch {path}, which has {size}"
        context.add("batch-missing", text, key=key, message_id=facts.id)


#: scheme → check
SCHEMES: dict[str, UriCheck] = {"chunks": check_chunks, "batch": check_batch}


def check_uri(uri: str, facts: MessageFacts, context: CheckContext) -> None:
    check = SCHEMES.get(uri.partition(":")[0])
    if check is not None:
        check(uri, facts, context)
        return
    text = f"the payload of message {facts.id} is at {uri!r}, which has an unknown scheme"
    context.add("payload-uri", text, key=keys.payload_key(facts.id), message_id=facts.id)


def routes(facts: MessageFacts, context: CheckContext) -> None:
    """Check that a message that several queues need, or that is in chunks, has a count of its uses."""
    if facts.routes is None and len(facts.places) == 1 and not facts.letters and not facts.chunks:
        return
    if not facts.needs or not context.sees(*_NEEDED_BY) or RecordKind.ROUTES_BLOCK in facts.corrupt:
        return
    key = keys.routes_block_key(facts.id)
    if facts.routes is None:
        if (facts.needs > 1 or facts.chunks) and context.store.can_tell(key):
            text = f"message {facts.id} is needed {facts.needs} times, has {len(facts.chunks)} chunks, but no count"
            context.add("routes-wrong", text, key=key, message_id=facts.id)
    elif facts.is_kept:
        text = f"message {facts.id} is needed {facts.needs} times, but its count has it kept by the log only"
        context.add("routes-wrong", text, key=key, message_id=facts.id)
    elif facts.routes != facts.needs:
        text = f"message {facts.id} is needed {facts.needs} times, but its count is {facts.routes}"
        context.add("routes-wrong", text, key=key, message_id=facts.id)


def identity(facts: MessageFacts, context: CheckContext) -> None:
    """Check that the metadata belongs to this message, and that the id has been assigned."""
    if facts.metadata is not None and facts.metadata.message_id != facts.id:
        text = f"the metadata of message {facts.id} names message {facts.metadata.message_id}"
        context.add("key-value-mismatch", text, key=keys.metadata_key(facts.id), message_id=facts.id)
    if context.block_end is not None and facts.id >= context.block_end:
        text = f"message {facts.id} exists, but ids from {context.block_end} on have not been assigned yet"
        context.add("sequence-behind", text, key=keys.SEQ_BLOCK_KEY, message_id=facts.id)


def times(facts: MessageFacts, context: CheckContext) -> None:
    metadata = facts.metadata
    if metadata is None:
        return
    received = metadata.received_at_ms
    if not context.is_plausible(received):
        text = f"message {facts.id} was received at {received} ms"
        context.add("time-implausible", text, key=keys.metadata_key(facts.id), message_id=facts.id)
    if metadata.visible_at_ms < received:
        text = f"message {facts.id} was visible at {metadata.visible_at_ms} ms, before it was received at {received} ms"
        context.add("entry-implausible", text, key=keys.metadata_key(facts.id), message_id=facts.id)
    for place in facts.places:
        wrong = "; ".join(_entry(place, received, context))
        if wrong:
            text = f"message {facts.id}, {place.state} in queue {place.queue!r} (bucket {place.bucket}): {wrong}"
            context.add("entry-implausible", text, queue=place.queue, message_id=facts.id)


def _entry(place: QueueMembership, received: int, context: CheckContext) -> Iterator[str]:
    if place.state == AVAILABLE:
        _id, _priority, visible, deadline, _attempts = place.entry
        if visible < received:
            yield f"visible at {visible} ms, received at {received} ms"
        if deadline and deadline < received:
            yield f"expires at {deadline} ms, received at {received} ms"
    elif place.state == IN_FLIGHT:
        _id, _priority, claimed, until, attempts = place.entry
        if claimed < received or claimed > context.now_ms + 86_400_000 or until < claimed:
            yield f"claimed at {claimed} ms until {until} ms, received at {received} ms"
        if not attempts:
            yield "claimed in 0 attempts"
    elif place.entry[1] < received or place.entry[1] > context.now_ms + 86_400_000:
        yield f"settled at {place.entry[1]} ms, received at {received} ms"


def dead_letters(facts: MessageFacts, context: CheckContext) -> None:
    """Check that a dead letter has left its queue: no queue entry needs the payload, or only the failed list does."""
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
            key = keys.dead_letter_key(facts.id, queue)
            context.add("dead-letter-wrong", text, key=key, queue=queue, message_id=facts.id)


CHECKS: tuple[MessageCheck, ...] = (once, complete, wanted, payload_place, routes, identity, times, dead_letters)
