"""Results over the wire: pushed, watched again after a break, stored once, chords handed to one client."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, states

from kombu_opendata import QueueClient
from kombu_opendata.broker import memory
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.result_client import Changes, ResultClient
from kombu_opendata.errors import CorruptRecord, MessageTooLarge, RequestError, StoreError
from kombu_opendata.protocol.envelope import DEFAULT_MAX_MESSAGE_BYTES
from kombu_opendata.protocol.messages import (
    ChordParts,
    Failed,
    GetChord,
    GetResults,
    OpenChord,
    Results,
    ResultsChanged,
    ResultStored,
    StoreResult,
    WatchResults,
)
from kombu_opendata.url import embedded, parse

from ..support.broker import EmbeddedBroker
from ..support.processes import wait_until
from ..support.raw import RawClient
from ..support.ticks import wait_expired
from ..support.verified import assert_verified
from .conftest import Reach

pytestmark = pytest.mark.contract(11)

INTERIM, READY, FINAL = range(3)


@pytest.fixture
def folder(store_folder: Path) -> Iterator[Path]:
    """A folder whose broker is up."""
    keeper = ResultClient([embedded(str(store_folder))])
    keeper.get([b"nothing"])
    yield store_folder
    keeper.close()


@pytest.fixture
def raw(folder: Path, stack: ExitStack) -> RawClient:
    client = stack.enter_context(RawClient(f"{folder}/broker.sock"))
    client.hello()
    return client


@pytest.fixture
def other(folder: Path, stack: ExitStack) -> RawClient:
    client = stack.enter_context(RawClient(f"{folder}/broker.sock"))
    client.hello()
    return client


def a_client(address: str, stack: ExitStack, **options: Any) -> ResultClient:
    client = ResultClient([parse(address)], Options(**options))
    stack.callback(client.close)
    return client


def store(name: bytes, value: bytes = b"x", kind: int = FINAL, **fields: Any) -> StoreResult:
    return StoreResult(0, name, kind, value, 0, **fields)


def part(member: bytes, index: int = -1) -> StoreResult:
    return store(b"", b"of " + member, chord=b"chord", index=index, member=member)


def take_all(client: ResultClient, count: int) -> Changes:
    """The next changes that the broker pushes."""
    taken: Changes = []
    while len(taken) < count:
        client.drain(20, taken.extend)
    return taken


def test_every_way_to_a_broker(reach: Reach, stack: ExitStack) -> None:
    client = a_client(reach.url, stack, tls=reach.options.get("ssl"))
    prefix = uuid.uuid4().bytes
    client.note_sent(prefix + b"a")
    client.watch(prefix + b"a")
    client.flush()
    assert client.store(store(prefix + b"a", b"1", INTERIM)).stored
    assert client.store(store(prefix + b"a", b"2")).stored
    assert not client.store(store(prefix + b"a", b"3")).stored
    assert take_all(client, 2) == [(prefix + b"a", b"1"), (prefix + b"a", b"2")]
    assert client.get([prefix + b"a", prefix + b"b"]) == [b"2", None]
    client.forget([prefix + b"a"])
    assert client.get([prefix + b"a"]) == [None]
    large = bytes(range(256)) * 8000
    assert client.store(store(prefix + b"large", large)).stored
    assert client.get([prefix + b"large"]) == [large], "a frame that is sent in parts"


def test_a_watch_tells_what_is_there_and_ends_with_a_result(raw: RawClient, other: RawClient) -> None:
    assert raw.call(store(b"there", b"1")).stored
    raw.send(WatchResults(0, [b"there", b"comes"]))
    assert raw.receive() == ResultsChanged([(b"there", b"1", True)])
    raw.receive()  # the Ok
    other.call(store(b"comes", b"2", INTERIM))
    other.call(store(b"comes", b"3", READY))
    other.call(store(b"comes", b"4"))
    assert raw.receive() == ResultsChanged([(b"comes", b"2", False)])
    assert raw.receive() == ResultsChanged([(b"comes", b"3", True)])
    answer = raw.receive() if raw.send(GetResults(0, [b"comes"])) else None
    assert isinstance(answer, Results)
    assert answer.values == [b"4"], "the watch had ended"


def test_a_large_result_is_asked_for(folder: Path, stack: ExitStack, raw: RawClient) -> None:
    client = a_client(f"opendata://{folder}", stack)
    large = [b"x" * (3 << 20), b"y" * (3 << 20), b"z" * (3 << 20)]
    names = [b"large %d" % number for number in range(3)]
    for name in names:
        client.watch(name)
    client.flush()
    for name, value in zip(names, large, strict=True):
        raw.call(store(name, value))
    assert take_all(client, 3) == list(zip(names, large, strict=True))
    assert client.get(names) == large, "in pages"


def test_results_are_pushed_again_if_the_request_for_a_large_one_fails(
    folder: Path, stack: ExitStack, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = a_client(f"opendata://{folder}", stack)
    values = {b"small": b"x", b"large": bytes(1 << 20)}
    for name, value in values.items():
        raw.call(store(name, value))
        client.watch(name)

    def get(_names: list[bytes]) -> list[bytes | None]:
        raise StoreError("the store does not answer")

    monkeypatch.setattr(client, "get", get)
    with pytest.raises(StoreError):
        take_all(client, 2)
    monkeypatch.undo()
    assert dict(take_all(client, 2)) == values


def test_what_is_stored_survives_a_kill_and_watches_go_on(folder: Path, stack: ExitStack) -> None:
    broker = EmbeddedBroker(folder)
    waiting, storing = (a_client(f"opendata://{folder}", stack) for _ in range(2))
    waiting.watch(b"later")
    waiting.watch(b"meanwhile")
    waiting.flush()
    storing.store(store(b"early", b"1"))
    broker.kill()
    storing.store(store(b"meanwhile", b"2"))
    assert take_all(waiting, 1) == [(b"meanwhile", b"2")]
    broker.kill()
    storing.store(store(b"later", b"3"))
    assert take_all(waiting, 1) == [(b"later", b"3")]
    assert storing.get([b"early", b"meanwhile", b"later"]) == [b"1", b"2", b"3"]


def test_a_large_result_over_kills_until_it_expires(folder: Path, stack: ExitStack) -> None:
    broker, client = EmbeddedBroker(folder), a_client(f"opendata://{folder}", stack)
    first, second = (random.Random(number).randbytes(1 << 20) for number in range(2))
    client.store(store(b"task", first, READY))
    assert client.get([b"task"]) == [first]
    broker.kill()
    assert client.get([b"task"]) == [first]
    client.store(StoreResult(0, b"task", READY, second, 30_000))
    broker.kill()
    assert client.get([b"task"]) == [second]
    files = folder / "default.staged" / "segments"
    assert sum(file.stat().st_size for file in files.glob("*")) <= 2 << 20
    wait_until(lambda: client.get([b"task"]) == [None], 60, "the end of the result")
    wait_until(lambda: not any(files.glob("*")), 120, "the end of its file")
    client.close()
    broker.terminate()
    assert_verified(folder)


@pytest.mark.damages_store
def test_a_damaged_result_keeps_back_no_other(folder: Path, stack: ExitStack) -> None:
    broker = EmbeddedBroker(folder)
    app = Celery("asking", broker=f"opendata://{folder}", backend="opendata", set_as_current=False)
    stack.callback(app.backend.client.close)
    values = {name: random.Random(name).randbytes(200_000).hex() for name in ("damaged", "sound", "later")}
    for name, value in values.items():
        app.backend.store_result(name, value, states.SUCCESS)
    broker.terminate()
    (file,) = (folder / "default.staged" / "segments").glob("*")
    data = bytearray(file.read_bytes())
    data[1000] ^= 0xFF
    file.write_bytes(data)
    damaged, sound, later = (app.AsyncResult(name) for name in values)
    app.backend.add_pending_result(damaged)
    assert sound.get(timeout=60) == values["sound"]
    with pytest.raises(CorruptRecord, match="damaged"):
        damaged.get(timeout=60)
    assert later.get(timeout=60) == values["later"]


def test_a_task_id_that_is_used_again_after_a_restart(folder: Path, stack: ExitStack) -> None:
    a_client(f"opendata://{folder}", stack).store(store(b"again", b"1"))
    a_client(f"opendata://{folder}", stack).store(store(b"once more", b"2"))
    EmbeddedBroker(folder).terminate()
    sending = a_client(f"opendata://{folder}", stack)
    sending.get([b"nothing"])
    with QueueClient(f"opendata://{folder}") as client:
        wait_expired(client, 1.5)  # the broker's memory has everything since the task is sent
    for name in (b"again", b"once more", b"new"):
        sending.note_sent(name)
    assert sending.get([b"again", b"new"]) == [b"1", None]
    sending.watch(b"once more")
    sending.watch(b"new")
    assert take_all(sending, 1) == [(b"once more", b"2")]
    sending.store(store(b"new", b"3"))
    assert take_all(sending, 1) == [(b"new", b"3")]


def test_a_chord_over_kills_is_complete_once(folder: Path, stack: ExitStack) -> None:
    broker = EmbeddedBroker(folder)
    workers = [a_client(f"opendata://{folder}", stack) for _ in range(2)]
    workers[0].open_chord(OpenChord(0, b"chord", 0, header=b"header", again=True))
    told = []
    for number in range(20):
        told.append(workers[number % 2].store(part(b"%d" % number, 19 - number)).complete)
        told.append(workers[number % 2].store(part(b"%d" % number, 19 - number)).complete)
        if number == 9:
            workers[0].open_chord(OpenChord(0, b"chord", 0, 19))
            workers[0].open_chord(OpenChord(0, b"chord", 0, added=1))
        if number in (5, 15):
            broker.kill()
    assert told == [False] * 38 + [True, True], "the second time it is the same client that comes again"
    assert not workers[0].store(part(b"3", 16)).complete, "another one is about to send the callback"
    broker.kill()
    header, parts = workers[1].chord_parts(b"chord")
    assert header == b"header"
    assert parts == [(b"%d" % number, b"of %d" % number) for number in range(19, -1, -1)]
    workers[1].close_chord(b"chord")
    assert workers[0].chord_parts(b"chord") == (b"", [])


def test_a_chord_whose_last_worker_died_goes_to_who_comes_again(folder: Path, raw: RawClient) -> None:
    with RawClient(f"{folder}/broker.sock") as last:
        last.hello()
        last.call(OpenChord(0, b"chord", 0, 1))
        assert last.call(part(b"a")).complete
        assert raw.call(part(b"a")) == ResultStored(raw._rid, False, False)
    wait_until(lambda: raw.call(part(b"a")).complete, 60, "the end of the session's grace time")


def test_a_page_of_a_chord(raw: RawClient) -> None:
    raw.call(OpenChord(0, b"chord", 0))
    for number in range(3):
        raw.call(store(b"", b"x" * (3 << 20), chord=b"chord", index=number, member=b"%d" % number))
    first = raw.call(GetChord(0, b"chord"))
    assert isinstance(first, ChordParts)
    assert ([member for member, _value in first.parts], first.count) == ([b"0", b"1"], 3)
    rest = raw.call(GetChord(0, b"chord", 2))
    assert [member for member, _value in rest.parts] == [b"2"]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (store(b""), "a name or a chord"),
        (store(b"n" * 1025), "1 to 1024, not 1025"),
        (store(b"n", kind=3), "kind of a result is 0 to 2, not 3"),
        (StoreResult(0, b"n", FINAL, b"", -1), "a time to live in ms is 0 to"),
        (StoreResult(0, b"n", FINAL, b"", 1 << 62), "time to live"),
        (store(b"", chord=b"c", member=b""), "chord member"),
        (store(b"", chord=b"c", member=b"m", index=1 << 32), "the index of a chord's part is -1 to"),
        (GetResults(0, [b""]), "1 to 1024"),
        (WatchResults(0, [b"n"] * 100_001), "more than 100000 items"),
        (OpenChord(0, b"c", 0, size=-2), "not -2"),
    ],
)
def test_bad_calls_are_refused_by_name(common_url: str, message: Any, text: str) -> None:
    with QueueClient(common_url) as client:
        client.list_queues()  # the broker is up
    with RawClient(f"{parse(common_url).folder}/broker.sock") as raw:
        raw.hello()
        answer = raw.call(message)
        assert isinstance(answer, Failed)
        assert answer.code == RequestError.code
        assert text in answer.text
        assert raw.call(store(uuid.uuid4().bytes)).stored


def test_a_result_over_the_limit_is_not_sent(stack: ExitStack, folder: Path) -> None:
    client = a_client(f"opendata://{folder}", stack)
    limit = DEFAULT_MAX_MESSAGE_BYTES
    with pytest.raises(MessageTooLarge, match=rf"limit is {limit}: store large data elsewhere .* --max-message-bytes"):
        client.store(store(b"large", bytes(limit + 1)))
    assert client.store(store(b"large", bytes(30 << 20))).stored
    assert client.get([b"large"]) == [bytes(30 << 20)]


def test_nobody_waits_for_what_is_not_watched_any_more(folder: Path, stack: ExitStack, raw: RawClient) -> None:
    client = a_client(f"opendata://{folder}", stack)
    for name in (b"a", b"b"):
        client.watch(name)
    client.flush()
    client.unwatch(b"a")
    client.flush()
    client.get([])
    assert client.get([b"a"]) == [None], "the broker has read what came before"
    raw.call(store(b"a"))
    raw.call(store(b"b"))
    assert take_all(client, 1) == [(b"b", b"x")]
    with pytest.raises(TimeoutError):
        client.drain(0.05, lambda _: None)


def test_the_next_address_when_a_broker_is_gone(store_folder: Path, stack: ExitStack) -> None:
    name = f"results-{uuid.uuid4().hex}"
    stack.callback(memory.stop, name)
    client = ResultClient([parse("opendata://127.0.0.1:1"), parse(f"opendata+memory://{name}")])
    stack.callback(client.close)
    assert client.store(store(b"a")).stored
    assert client.get([b"a"]) == [b"x"]
