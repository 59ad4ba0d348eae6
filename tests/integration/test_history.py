"""History through a real broker: the behaviours that users of a log store know, and what is refused."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.errors import (
    CursorError,
    CursorOfAnotherList,
    CursorOfOtherFilters,
    CursorVersionMismatch,
    InvalidFilter,
    LimitOutOfRange,
    MalformedCursor,
    PreconditionFailed,
    RequestError,
    TooManyCursors,
)
from kombu_opendata.protocol.envelope import encode_envelope
from kombu_opendata.protocol.messages import AttemptPage, DeclareQueue, MessagePage, Outcome, Publish, PurgeQueue
from kombu_opendata.url import parse

from ..support import history_calls as history_queries
from ..support.broker import EmbeddedBroker
from ..support.processes import children
from ..support.served import ServedBroker

Lists = Callable[..., MessagePage | AttemptPage]
FIRST_MS = 1


class Client:
    """A connection that publishes with headers, and settles as a test says."""

    def __init__(self, url: str, name: str = "worker-1") -> None:
        self.connection = BrokerConnection(parse(url), Options(name=name, start_timeout=60, reconnect_timeout=60))
        self.connection.connect()

    def declare(self, *queues: str) -> None:
        for queue in queues:
            self.connection.call(DeclareQueue(0, queue, True, False, False, {}, False))

    def send(self, queue: str, **headers: str) -> int:
        message = Publish(
            0, 0, "", queue, encode_envelope(b"body", None, None, headers, {}, "", queue), {}, 0, FIRST_MS
        )
        return int(self.connection.io.publish(message).message_id)

    def work(self, queue: str, *outcomes: Outcome) -> None:
        """Claim a message for each outcome, the oldest first, and end it so."""
        for outcome in outcomes:
            delivery = self.connection.get(1, queue, no_ack=False)
            assert delivery is not None
            self.connection.settle(1, outcome, [delivery.lease])

    def messages(self, **filters: Any) -> MessagePage:
        return history_queries.list_messages(self.connection, **filters)

    def attempts(self, **filters: Any) -> AttemptPage:
        return history_queries.list_attempts(self.connection, **filters)


@pytest.fixture(scope="module")
def client(module_store_folder: Path) -> Iterator[Client]:
    opened = Client(f"opendata://{module_store_folder}")
    yield opened
    opened.connection.close()


@dataclass
class Sample:
    """Ten messages of two queues, and eight attempts, all with one tag of their own."""

    client: Client
    tag: str
    one: str
    two: str
    ids: list[int]

    @property
    def mine(self) -> dict[str, str]:
        return {"tag": self.tag}


@pytest.fixture(scope="module")
def sample(client: Client) -> Sample:
    tag = uuid.uuid4().hex
    one, two = f"one-{tag}", f"two-{tag}"
    client.declare(one, two)
    ids = [
        client.send(one if number % 2 == 0 else two, tag=tag, task=("add", "mul", "sub")[number % 3], n=str(number))
        for number in range(10)
    ]
    client.work(one, Outcome.ACK, Outcome.ACK, Outcome.REJECT, Outcome.RELEASE)
    client.work(two, Outcome.ACK, Outcome.REQUEUE, Outcome.REQUEUE, Outcome.ACK)
    return Sample(client, tag, one, two, ids)


def ids_of(page: MessagePage) -> list[int]:
    return [one.id for one in page.items]


# ---------------------------------------------------------------------- what is shown
def test_a_message_is_shown_with_its_metadata_and_what_it_is_in_its_queue(sample: Sample) -> None:
    found = history_queries.retrieve_message(sample.client.connection, sample.ids[0])
    assert found is not None
    assert found.headers["task"] == "add"
    assert found.created_at_ms == FIRST_MS
    assert found.received_at_ms > FIRST_MS
    (status,) = found.queues
    assert (status.queue, status.status, status.attempts) == (sample.one, "done", 1)
    assert status.at_ms >= found.received_at_ms
    assert found.status("elsewhere") is None


def test_an_attempt_says_who_when_and_how(sample: Sample) -> None:
    page = sample.client.attempts(queues=[sample.two], order="asc")
    told = [(one.message_id, one.number, one.outcome, one.requeued) for one in page.items]
    first, second = sample.ids[1], sample.ids[3]
    assert told == [
        (first, 1, "acked", False),
        (second, 1, "rejected", True),
        (second, 2, "rejected", True),
        (second, 3, "acked", False),
    ]
    for one in page.items:
        assert one.consumer == "worker-1"
        assert 0 < one.claimed_at_ms <= one.ended_at_ms
        assert not one.manual
        assert history_queries.retrieve_attempt(sample.client.connection, one.id) == one


def test_what_is_not_there_is_none(sample: Sample) -> None:
    connection = sample.client.connection
    assert history_queries.retrieve_message(connection, 1 << 60) is None
    assert history_queries.retrieve_attempt(connection, "attempt-ffffffff") is None


def test_results_are_copies(sample: Sample) -> None:
    shown = sample.client.messages(ids=sample.ids[:1]).items[0]
    shown.headers["task"] = "changed"
    assert sample.client.messages(ids=sample.ids[:1]).items[0].headers["task"] == "add"


def test_another_instance_sees_nothing_of_it(sample: Sample, module_store_folder: Path) -> None:
    attempt = sample.client.attempts(queues=[sample.one], limit=1).items[0]
    with QueueClient(f"opendata://{module_store_folder}") as client:
        client.create_instance("other")
    url = replace(parse(f"opendata://{module_store_folder}"), instance="other")
    other = BrokerConnection(url, Options(name="other"))
    other.connect()
    try:
        assert history_queries.retrieve_message(other, sample.ids[0]) is None
        assert history_queries.retrieve_attempt(other, attempt.id) is None
        assert not history_queries.list_messages(other, headers=sample.mine).items
        assert not history_queries.list_attempts(other).items
    finally:
        other.close()


def test_a_message_without_headers_is_found_too(client: Client, name: str) -> None:
    client.declare(name)
    id = client.send(name)
    page = client.messages(queues=[name])
    assert ids_of(page) == [id]
    assert page.items[0].headers == {"exchange": "", "routing_key": name, "priority": "0"}


def test_a_repeated_publish_is_one_message(client: Client, name: str) -> None:
    """Also among the rows of the log: a client that lost the answer sends the same number again."""
    client.declare(name)
    message = Publish(0, 0, "", name, encode_envelope(b"body", None, None, {}, {}, "", name), {}, 0, FIRST_MS)
    first = client.connection.io.publish(message)
    again = client.connection.call(message)
    assert again.message_id == first.message_id
    assert ids_of(client.messages(queues=[name])) == [first.message_id]


# ---------------------------------------------------------------------- filters
@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"queues": ["one"]}, [0, 2, 4, 6, 8]),
        ({"queues": ["one", "two"]}, list(range(10))),
        ({"queues": ["nobody's"]}, []),
        ({"statuses": ["done"]}, [0, 1, 2, 3]),
        ({"statuses": ["failed"]}, [4]),
        ({"statuses": ["done", "failed"], "queues": ["one"]}, [0, 2, 4]),
        ({"statuses": ["available"]}, [5, 6, 7, 8, 9]),
        ({"statuses": ["in_flight"]}, []),
        ({"headers": {"task": "add"}}, [0, 3, 6, 9]),
        ({"headers": {"task": ["add", "mul"]}}, [0, 1, 3, 4, 6, 7, 9]),
        ({"headers": {"task": "add", "n": ["0", "1", "9"]}}, [0, 9]),
        ({"headers": {"n": 3}}, [3]),
        ({"headers": {"never": "there"}}, []),
        ({"headers": {"task": "add"}, "statuses": ["done"], "queues": ["two"]}, [3]),
        ({"ids": [2]}, [2]),
        ({"ids": [7, 2], "headers": {"task": "sub"}}, [2]),
    ],
)
def test_filters_of_messages(sample: Sample, filters: dict[str, Any], wanted: list[int]) -> None:
    assert ids_of(sample.client.messages(order="asc", **of_sample(sample, filters))) == [sample.ids[n] for n in wanted]


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"queues": ["one"]}, [0, 2, 4, 6]),
        ({"outcomes": ["acked"]}, [0, 2, 1, 3]),
        ({"outcomes": ["rejected"]}, [4, 3, 3]),
        ({"outcomes": ["rejected", "released"], "queues": ["one"]}, [4, 6]),
        ({"headers": {"task": "add"}}, [0, 6, 3, 3, 3]),
        ({"message_ids": [3]}, [3, 3, 3]),
        ({"message_ids": [3, 0], "outcomes": ["acked"]}, [0, 3]),
        ({"consumers": ["worker-1"], "queues": ["two"]}, [1, 3, 3, 3]),
        ({"consumers": ["nobody"]}, []),
        ({"manual": True}, []),
        ({"manual": False, "outcomes": ["released"]}, [6]),
    ],
)
def test_filters_of_attempts(sample: Sample, filters: dict[str, Any], wanted: list[int]) -> None:
    page = sample.client.attempts(order="asc", **of_sample(sample, filters))
    assert [sample.ids.index(one.message_id) for one in page.items] == wanted


def of_sample(sample: Sample, filters: dict[str, Any]) -> dict[str, Any]:
    """The filters with the sample's names and ids, and its tag."""
    names = {"one": sample.one, "two": sample.two}
    given = {**filters, "headers": {**filters.get("headers", {}), **sample.mine}}
    if "queues" in given:
        given["queues"] = [names.get(name, name) for name in given["queues"]]
    for name in ("ids", "message_ids"):
        if name in given:
            given[name] = [sample.ids[number] for number in given[name]]
    return given


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_no_filter_and_an_empty_one_are_the_same(sample: Sample, nothing: Any) -> None:
    everything = sample.client.messages(headers=sample.mine)
    assert len(everything.items) == 10
    assert sample.client.messages(headers=sample.mine, queues=nothing, statuses=nothing, ids=nothing) == everything
    assert sample.client.messages(headers={**sample.mine, "task": nothing or []}) == everything
    all_attempts = sample.client.attempts(headers=sample.mine)
    assert sample.client.attempts(headers=sample.mine, outcomes=nothing, consumers=nothing) == all_attempts


def test_limits_of_time_are_exact(client: Client, name: str) -> None:
    client.declare(name)
    ids: list[int] = []
    while len(ids) < 3:  # three messages of different milliseconds
        id = client.send(name)
        page = client.messages(queues=[name], order="asc")
        if len({one.received_at_ms for one in page.items}) == len(page.items):
            ids.append(id)
        else:
            client.connection.call(PurgeQueue(0, name))
            ids = ids_of(client.messages(queues=[name], statuses=["available"], order="asc"))
    middle = client.messages(ids=[ids[1]]).items[0].received_at_ms

    def between(**limits: Any) -> list[int]:
        return ids_of(client.messages(queues=[name], statuses=["available"], order="asc", **limits))

    assert between(gte=middle) == ids[1:]
    assert between(gt=middle) == ids[2:]
    assert between(lte=middle) == ids[:2]
    assert between(lt=middle) == ids[:1]
    assert between(gte=middle, lte=middle) == [ids[1]]
    assert between(gt=middle, lt=middle) == []
    assert between(gte=middle + 1, lte=middle - 1) == []
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=middle)
    assert between(gte=instant, lte=instant) == [ids[1]]
    assert between(gte=instant + timedelta(microseconds=1)) == ids[2:]
    assert between(lt=instant + timedelta(microseconds=1)) == ids[:2]


# ---------------------------------------------------------------------- pages
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 3, 5, 9, 10, 11, 1000])
@pytest.mark.parametrize("kind", ["messages", "attempts"])
def test_pages_forth_and_back(sample: Sample, kind: str, limit: int, order: str) -> None:
    """A partial last page, one that ends with the last item, pages of one item, all in one."""
    listing: Lists = getattr(sample.client, kind)
    everything = listing(headers=sample.mine, order=order)
    assert (everything.next, everything.prev) == (None, None)
    pages = [listing(headers=sample.mine, order=order, limit=limit)]
    assert pages[0].prev is None
    while pages[-1].next is not None:
        pages.append(listing(headers=sample.mine, order=order, limit=limit, next=pages[-1].next))
        assert pages[-1].prev is not None
    assert [one for page in pages for one in page.items] == list(everything.items)
    assert [len(page.items) for page in pages[:-1]] == [limit] * (len(pages) - 1)
    for before, page in zip(pages[-2::-1], pages[:0:-1], strict=True):
        assert listing(headers=sample.mine, order=order, limit=limit, prev=page.prev) == before


def test_the_orders_mirror_each_other(sample: Sample) -> None:
    assert ids_of(sample.client.messages(headers=sample.mine)) == sample.ids[::-1]
    up = sample.client.attempts(headers=sample.mine, order="asc").items
    assert sample.client.attempts(headers=sample.mine, order="desc").items == up[::-1]


def test_an_empty_list_has_no_cursors(sample: Sample) -> None:
    page = sample.client.messages(headers={"tag": "nobody's"})
    assert (page.items, page.next, page.prev) == ((), None, None)
    attempts = sample.client.attempts(headers={"tag": "nobody's"})
    assert (attempts.items, attempts.next, attempts.prev) == ((), None, None)


def test_pages_with_filters_and_a_window_of_time(sample: Sample) -> None:
    first, last = (sample.client.messages(ids=[sample.ids[n]]).items[0].received_at_ms for n in (0, 9))
    given = {"headers": {**sample.mine, "task": ["add", "mul"]}, "gte": first, "lte": last, "limit": 2, "order": "asc"}
    found: list[int] = []
    cursor = None
    while True:
        page = sample.client.messages(**given, next=cursor)
        found += ids_of(page)
        cursor = page.next
        if cursor is None:
            break
    assert found == [sample.ids[n] for n in (0, 1, 3, 4, 6, 7, 9)]


def test_a_page_may_have_another_size_than_the_one_before(sample: Sample) -> None:
    first = sample.client.messages(headers=sample.mine, order="asc", limit=2)
    assert ids_of(sample.client.messages(headers=sample.mine, order="asc", limit=5, next=first.next)) == sample.ids[2:7]


def test_what_comes_later_does_not_move_a_page(client: Client, name: str) -> None:
    client.declare(name)
    ids = [client.send(name) for _ in range(4)]
    first = client.messages(queues=[name], limit=2)
    client.send(name)
    assert ids_of(client.messages(queues=[name], limit=2, next=first.next)) == [ids[1], ids[0]]


# ---------------------------------------------------------------------- counts
def test_counts_by_time_are_aligned_and_filled(sample: Sample) -> None:
    connection = sample.client.connection
    times = [one.received_at_ms for one in sample.client.messages(headers=sample.mine).items]
    low, high = min(times) - 2500, max(times) + 2500
    buckets = history_queries.count_messages(connection, gte=low, lt=high, bucket_seconds=1, headers=sample.mine)
    assert sum(bucket.count for bucket in buckets) == 10
    assert [bucket.start_ms for bucket in buckets] == list(range(low // 1000 * 1000, high, 1000))
    assert buckets[0].count == 0
    for bucket in buckets:
        assert bucket.count == sum(bucket.start_ms <= at < bucket.start_ms + 1000 for at in times)


def test_counts_of_attempts(sample: Sample) -> None:
    ended = [one.ended_at_ms for one in sample.client.attempts(headers=sample.mine).items]
    counted = history_queries.count_attempts(
        sample.client.connection, gte=min(ended), lt=max(ended) + 1, bucket_seconds=3600, headers=sample.mine,
        outcomes=["acked"],
    )  # fmt: skip
    assert sum(bucket.count for bucket in counted) == 4
    without_last = history_queries.count_attempts(
        sample.client.connection, gte=min(ended), lt=max(ended), bucket_seconds=3600, headers=sample.mine
    )
    assert sum(bucket.count for bucket in without_last) == sum(at < max(ended) for at in ended)


@pytest.mark.parametrize(
    "wrong", [{"bucket_seconds": 0.001}, {"bucket_seconds": 0}, {"lt": 0}, {"gte": -5}, {"lt": 1 << 62}]
)
def test_counts_that_are_refused(client: Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidFilter):
        history_queries.count_attempts(client.connection, **{"gte": 0, "lt": 100_000, "bucket_seconds": 1, **wrong})


# ---------------------------------------------------------------------- what is refused
@pytest.mark.parametrize("kind", ["messages", "attempts"])
@pytest.mark.parametrize("limit", [0, -1, 1001, 10**9, 10**30, -(10**30)])
def test_limits_are_from_1_to_1000(client: Client, kind: str, limit: int) -> None:
    with pytest.raises(LimitOutOfRange, match="1 to 1000") as caught:
        getattr(client, kind)(limit=limit)
    assert (caught.value.values["lowest"], caught.value.values["highest"]) == (1, 1000)


def test_a_limit_is_a_number(client: Client) -> None:
    with pytest.raises(InvalidFilter):
        client.messages(limit="many")


@pytest.mark.parametrize(
    "wrong",
    [
        {"statuses": ["lost"]},
        {"order": "up"},
        {"ids": [-1]},
        {"queues": [str(n) for n in range(1001)]},
        {"gte": 1 << 62},
    ],
)
def test_filters_that_do_not_exist(client: Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidFilter):
        client.messages(**wrong)


def test_one_text_is_no_list(client: Client) -> None:
    with pytest.raises(InvalidFilter, match="a single text"):
        client.messages(queues="celery")


def test_outcomes_that_do_not_exist(client: Client) -> None:
    with pytest.raises(InvalidFilter, match="acked, failed, rejected, expired, released, redriven"):
        client.attempts(outcomes=["success"])


@pytest.mark.parametrize("id", ["", "attempt-", "attempt-xyz", "attempt--1", "attempt-" + "f" * 17, "1", "attempt-٣"])
def test_attempt_ids_that_are_none(client: Client, id: str) -> None:
    with pytest.raises(RequestError, match="not an attempt's id"):
        history_queries.retrieve_attempt(client.connection, id)


def cursor_of(sample: Sample) -> str:
    cursor = sample.client.messages(headers=sample.mine, limit=2).next
    assert cursor is not None
    return cursor


def changed(cursor: str, at: int, byte: int) -> str:
    raw = bytearray(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    raw[at] = byte
    return base64.urlsafe_b64encode(bytes(raw)).decode()


def test_cursors_from_elsewhere_are_refused_by_name(sample: Sample) -> None:
    cursor, client = cursor_of(sample), sample.client
    with pytest.raises(CursorOfAnotherList, match="messages does not fit one of attempts"):
        client.attempts(headers=sample.mine, next=cursor)
    with pytest.raises(CursorVersionMismatch, match="version 2"):
        client.messages(headers=sample.mine, next=changed(cursor, 1, 2))
    others: list[dict[str, Any]] = [{"headers": {}}, {"order": "asc"}, {"queues": [sample.one]}, {"gte": 5}]
    for other in others:
        with pytest.raises(CursorOfOtherFilters):
            client.messages(**{"headers": sample.mine, **other}, prev=cursor)
    with pytest.raises(TooManyCursors):
        client.messages(headers=sample.mine, next=cursor, prev=cursor)


@pytest.mark.parametrize("text", ["x", "not a cursor", "é", "AAAA", "====", "a" * 10_000, "AQ", "\0"])
def test_malformed_cursors(sample: Sample, text: str) -> None:
    for given in ({"next": text}, {"prev": text}):
        with pytest.raises(MalformedCursor):
            sample.client.messages(headers=sample.mine, **given)


def test_a_cursor_that_was_cut_is_refused(sample: Sample) -> None:
    cursor = cursor_of(sample)
    for end in range(1, len(cursor)):
        with pytest.raises(CursorError):
            sample.client.messages(headers=sample.mine, next=cursor[:end])


def test_a_broker_without_history_says_so(store_folder: Path, tmp_path: Path) -> None:
    with children() as started:
        store = ("--store", f"file://{store_folder}", "--listen", f"unix:{store_folder}/broker.sock")
        started.add(ServedBroker(tmp_path, *store, "--history-days", "0"))
        client = Client(f"opendata://{store_folder}")
        try:
            client.declare("q")
            client.send("q")
            client.work("q", Outcome.ACK)
            with pytest.raises(PreconditionFailed, match="keeps no history"):
                client.messages()
        finally:
            client.connection.close()


# ---------------------------------------------------------------------- over time
def test_history_survives_kill_9(store_folder: Path, broker: EmbeddedBroker, stack: ExitStack) -> None:
    client = Client(f"opendata://{store_folder}")
    stack.callback(client.connection.close)
    client.declare("q")
    ids = [client.send("q", task="add") for _ in range(20)]
    for round in range(4):
        client.work("q", *[Outcome.ACK] * 5)
        before = client.attempts(queues=["q"], order="asc").items
        assert [one.message_id for one in before] == ids[: 5 * (round + 1)]
        broker.kill()
        after = client.attempts(queues=["q"], order="asc").items
        assert after == before, "no row lost or doubled, and each with the id that it was shown with"
        assert ids_of(client.messages(headers={"task": "add"}, statuses=["done"], order="asc")) == ids[: len(before)]


def test_a_lost_consumers_attempt_expired(client: Client, name: str, module_store_folder: Path) -> None:
    client.declare(name)
    client.send(name)
    lost = Client(f"opendata://{module_store_folder}", name="lost-worker")
    assert lost.connection.get(1, name, no_ack=False) is not None
    (held,) = client.messages(queues=[name], statuses=["in_flight"]).items[0].queues
    assert held.consumer == "lost-worker"
    lost.connection.link.drop()  # as if its process had been killed
    deadline = client.connection.clock.monotonic() + 20
    while not (page := client.attempts(queues=[name])).items:
        assert client.connection.clock.monotonic() < deadline
    (attempt,) = page.items
    assert (attempt.outcome, attempt.consumer, attempt.requeued) == ("expired", "lost-worker", True)
