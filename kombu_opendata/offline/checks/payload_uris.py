"""Checks of payloads outside of their records, with a function for each scheme of URIs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...staging.batch_format import parse_payload_uri
from ...storage.records import keys, payload
from ...storage.records.payload import CHUNK_BYTES
from ..findings import Finding, finding
from ..records.message_facts import MessageFacts
from .family import CheckContext

UriCheck = Callable[[str, MessageFacts, CheckContext], Iterator[Finding]]


def check_chunks(uri: str, facts: MessageFacts, context: CheckContext) -> Iterator[Finding]:
    """Check that the chunk records are exactly those that the URI announces."""
    key = keys.payload_key(facts.id)
    parsed = payload.parse_chunks_uri(uri)
    if parsed is None:
        text = f"the payload of message {facts.id} is at {uri!r}, which is not a list of chunks"
        yield finding("payload-uri", text, key=key, message_id=facts.id)
        return
    count, size = parsed
    if -(-size // CHUNK_BYTES) != count:
        text = f"message {facts.id} has {size} bytes in {count} chunks of {CHUNK_BYTES}"
        yield finding("chunks-wrong", text, key=key, message_id=facts.id)
        return
    expected = {number: min(CHUNK_BYTES, size - number * CHUNK_BYTES) for number in range(count)}
    there = dict(facts.chunks)
    if there == expected:
        return
    wrong = sorted(number for number in expected.keys() | there.keys() if expected.get(number) != there.get(number))
    missing = [number for number in wrong if number not in there]
    if missing == wrong and not all(context.can_tell(keys.chunk_key(facts.id, number)) for number in missing):
        return
    text = (
        f"chunk {wrong[0]} of message {facts.id} has {there.get(wrong[0], 'no')} bytes instead of "
        f"{expected.get(wrong[0], 'none')}; {len(wrong)} of {count} chunks are wrong"
    )
    yield finding("chunks-wrong", text, key=keys.chunk_key(facts.id, wrong[0]), message_id=facts.id)


def check_batch(uri: str, facts: MessageFacts, context: CheckContext) -> Iterator[Finding]:
    """Check that the batch object exists and is large enough. :mod:`.staged_records` reads it."""
    key, place = keys.payload_key(facts.id), parse_payload_uri(uri)
    if place is None:
        text = f"the payload of message {facts.id} is at {uri!r}, which is not a position in a staged batch"
        yield finding("payload-uri", text, key=key, message_id=facts.id)
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
        yield finding("batch-missing", text, key=key, message_id=facts.id)
        return
    if end > size:
        text = f"the payload of message {facts.id} ends at byte {end} of batch {path}, which has {size}"
        yield finding("batch-missing", text, key=key, message_id=facts.id)


#: scheme → check
SCHEMES: dict[str, UriCheck] = {"chunks": check_chunks, "batch": check_batch}


def check_uri(uri: str, facts: MessageFacts, context: CheckContext) -> Iterator[Finding]:
    """Check that a payload is at the location in its URI."""
    check = SCHEMES.get(uri.partition(":")[0])
    if check is not None:
        yield from check(uri, facts, context)
        return
    text = f"the payload of message {facts.id} is at {uri!r}, which has an unknown scheme"
    yield finding("payload-uri", text, key=keys.payload_key(facts.id), message_id=facts.id)
