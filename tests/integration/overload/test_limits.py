"""Limits of users, instances and connections, at a real broker: the one who reaches it is refused, others go on."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.broker.access.secret_hashes import hash_secret
from kombu_opendata.errors import LimitExceeded, RequestError
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import frame
from kombu_opendata.protocol.messages import queue_messages as q

from ...support.processes import wait_until
from ...support.raw import RawClient, publish
from ...support.served import ServedBroker

pytestmark = pytest.mark.contract(16)

SECRET = "open sesame"


def users_file(path: Path, limits: str, instance_limits: str = "", hashes: dict[str, str] = {}) -> Path:  # noqa: B006
    """Two users, of whom ``busy`` has limits."""
    hashes.setdefault("hash", hash_secret(SECRET))
    text = "".join(
        f"""
        [users.{name}]
        secret = "{hashes["hash"]}"
        limits = {{ {limits if name == "busy" else ""} }}
        [users.{name}.instances."*"]
        configure = ".*"
        write = ".*"
        read = ".*"
        """
        for name in ("busy", "quiet")
    )
    path.write_text(text + f"[instances.default]\nlimits = {{ {instance_limits} }}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def limited(
    tmp_path: Path, serve: Callable[..., ServedBroker], client: Callable[..., RawClient]
) -> Callable[..., tuple[RawClient, RawClient]]:
    """Starts a broker with these limits; returns a client of each user."""

    def begin(limits: str = "", instance_limits: str = "") -> tuple[RawClient, RawClient]:
        serve("--users", str(users_file(tmp_path / "users.toml", limits, instance_limits)))
        return tuple(client(user=name, secret=SECRET) for name in ("busy", "quiet"))  # type: ignore[return-value]

    return begin


def refused(answer: Any, limit: str, value: int, whose: str) -> None:
    assert isinstance(answer, m.Failed), answer
    assert answer.values == {"limit": limit, "value": value, "whose": whose}
    assert limit in answer.text
    assert str(value) in answer.text.replace(",", "")


def declare(raw: RawClient, queue: str) -> Any:
    return raw.call(m.DeclareQueue(0, queue, True, False, False, {}, False))


def test_connections(
    limited: Callable[..., Any], client: Callable[..., RawClient], stranger: Callable[[], RawClient]
) -> None:
    first, _quiet = limited("connections = 2")
    client(user="busy", secret=SECRET)
    third = stranger()
    third.send(m.Hello(0, os.urandom(16), "third", user="busy", secret=SECRET))
    last = third.last_word()
    assert last is not None
    assert last.code == "connection_limit_exceeded"
    assert last.values == {"limit": "connections", "value": 2, "whose": "user 'busy'"}
    client(user="quiet", secret=SECRET)
    again = client(session=first.session, user="busy", secret=SECRET)  # one that comes back counts once
    again.call(m.Goodbye(0))
    client(user="busy", secret=SECRET)


def test_connections_that_announce_a_resume_count(
    tmp_path: Path,
    serve: Callable[..., ServedBroker],
    client: Callable[..., RawClient],
    stranger: Callable[[], RawClient],
) -> None:
    serve("--users", str(users_file(tmp_path / "users.toml", "connections = 2")))
    first = client(user="busy", secret=SECRET)
    client(user="busy", secret=SECRET)
    arriving = [stranger() for _ in range(4)]
    resume = m.Hello(0, first.session, "raw", user="busy", secret=SECRET, resume=True, resume_follows=True)
    answers = [raw.call(resume) for raw in arriving]
    assert [type(answer) for answer in answers] == [m.LoggedIn] * 2 + [m.Failed] * 2
    assert answers[2].code == "connection_limit_exceeded"
    assert isinstance(arriving[0].call(m.Resume(0, [], [])), m.Welcome)  # in place of the first
    arriving[1].sock.close()
    for _ in range(3):  # each in place of the one before
        again = stranger()
        assert isinstance(again.call(resume), m.LoggedIn)
        assert isinstance(again.call(m.Resume(0, [], [])), m.Welcome)


def test_channels_and_consumers(limited: Callable[..., Any]) -> None:
    busy, quiet = limited("channels = 2, consumers = 2")
    busy.declare("q")
    assert isinstance(busy.call(m.Qos(0, 1, 5)), m.Ok)
    assert isinstance(busy.call(m.Qos(0, 2, 5)), m.Ok)
    refused(busy.call(m.Qos(0, 3, 5)), "channels", 2, "user 'busy'")
    assert isinstance(quiet.call(m.Qos(0, 3, 5)), m.Ok)
    assert isinstance(busy.consume("q", "a"), m.Ok)
    assert isinstance(busy.consume("q", "b"), m.Ok)
    refused(busy.consume("q", "c"), "consumers", 2, "user 'busy'")
    assert isinstance(busy.call(m.Cancel(0, 1, "a")), m.Ok)
    assert isinstance(busy.consume("q", "c"), m.Ok)
    assert isinstance(quiet.consume("q", "d"), m.Ok)


def test_queues_and_bindings(limited: Callable[..., Any]) -> None:
    busy, quiet = limited("queues = 1, bindings = 2", "queues = 3, bindings = 4")
    busy.declare("busy-1")
    busy.declare("busy-1")
    refused(declare(busy, "busy-2"), "queues", 1, "user 'busy'")
    quiet.declare("quiet-1")
    quiet.declare("quiet-2")
    refused(declare(quiet, "quiet-3"), "queues", 3, "instance 'default'")

    def bind(raw: RawClient, queue: str, key: str) -> Any:
        return raw.call(m.Bind(0, queue, "amq.direct", key, {}))

    for key in ("a", "b", "b"):
        assert isinstance(bind(busy, "busy-1", key), m.Ok)
    refused(bind(busy, "busy-1", "c"), "bindings", 2, "user 'busy'")
    assert isinstance(bind(quiet, "quiet-1", "c"), m.Ok)
    assert isinstance(bind(quiet, "quiet-1", "d"), m.Ok)
    refused(bind(quiet, "quiet-1", "e"), "bindings", 4, "instance 'default'")
    assert isinstance(busy.call(m.DeleteQueue(0, "busy-1", False, False)), m.Count)
    assert isinstance(bind(quiet, "quiet-1", "e"), m.Ok)
    busy.declare("busy-2")


def test_the_size_of_messages(limited: Callable[..., Any]) -> None:
    busy, quiet = limited("message-bytes = 1000", "message-bytes = 2000")
    busy.declare("q")
    assert isinstance(busy.publish("q", 1, bytes(1000)), m.PublishConfirm)
    refused(busy.publish("q", 2, bytes(1001)), "message-bytes", 1000, "user 'busy'")
    send = q.Send(0, 3, "", "q", [(b"small", {}, 0, 0, -1), (bytes(1001), {}, 0, 0, -1)], 1)
    refused(busy.call(send), "message-bytes", 1000, "user 'busy'")
    assert isinstance(quiet.publish("q", 1, bytes(1001)), m.PublishConfirm)
    refused(quiet.publish("q", 2, bytes(2001)), "message-bytes", 2000, "instance 'default'")
    assert busy.declare("q").ready == 2


def test_publishes_a_second_wait_and_others_do_not(limited: Callable[..., Any]) -> None:
    busy, quiet = limited("publishes-per-second = 100")
    busy.declare("q")
    began = time.monotonic()
    for seq in range(1, 201):  # 100 at once, then one each 10 ms
        busy.send(publish("q", seq))
    for seq in range(1, 21):
        assert isinstance(quiet.publish("q", seq), m.PublishConfirm)
    quiet_ended = time.monotonic()
    answered = 0
    while answered < 200:
        message = busy.receive()
        assert isinstance(message, m.PublishConfirm), message
        answered += 1
    busy_ended = time.monotonic()
    assert busy_ended - began > 0.9
    assert quiet_ended < busy_ended


def many(seq: int, exchange: str = "") -> q.Send:
    """A send that counts as a thousand messages."""
    return q.Send(0, seq, exchange, "q", [(b"small", {}, 0, 0, -1)] * 1000, 1)


def publishes_soon(raw: RawClient) -> bool:
    began = time.monotonic()
    assert isinstance(raw.publish("q", 1), m.PublishConfirm)
    return time.monotonic() - began < 5  # what waits behind a thousand messages waits for nine


def test_who_has_a_limit_takes_no_more_of_the_instances(limited: Callable[..., Any]) -> None:
    busy, quiet = limited("publishes-per-second = 1", "publishes-per-second = 100")
    quiet.declare("q")
    busy.send(many(1))
    busy.call(q.Ping(0))  # it overtakes the send, which waits
    assert publishes_soon(quiet)


def test_who_leaves_takes_no_part(limited: Callable[..., Any]) -> None:
    busy, quiet = limited("", "publishes-per-second = 100")
    quiet.declare("q")
    busy.send(many(1))
    busy.call(q.Ping(0))
    busy.sock.close()
    for _ in range(3):  # turns of the broker's loop, which sees the end of the other one meanwhile
        quiet.call(q.Ping(0))
    assert publishes_soon(quiet)


def test_what_is_refused_takes_no_part(
    tmp_path: Path, serve: Callable[..., ServedBroker], client: Callable[..., RawClient]
) -> None:
    users = users_file(tmp_path / "users.toml", "", "publishes-per-second = 100")
    users.write_text(users.read_text().replace('write = ".*"', 'write = ""', 1))
    serve("--users", str(users))
    busy, quiet = client(user="busy", secret=SECRET), client(user="quiet", secret=SECRET)
    quiet.declare("q")
    for seq in (1, 2):
        busy.send(many(seq))
    busy.call(q.Ping(0))
    assert publishes_soon(quiet)


def test_a_reload_changes_the_limits_of_open_connections(limited: Callable[..., Any], tmp_path: Path) -> None:
    busy, _quiet = limited("queues = 1")
    busy.declare("first")
    refused(declare(busy, "second"), "queues", 1, "user 'busy'")
    users_file(tmp_path / "users.toml", "queues = 2, consumers = 1")
    wait_until(lambda: isinstance(declare(busy, "second"), m.QueueDeclared), 60, "the new limit")
    assert isinstance(busy.consume("first", "a"), m.Ok)
    refused(busy.consume("first", "b"), "consumers", 1, "user 'busy'")
    users_file(tmp_path / "users.toml", "queues = 1")
    wait_until(lambda: isinstance(declare(busy, "third"), m.Failed), 60, "the old limit")
    assert busy.declare("second").queue == "second"  # what there is stays


def test_each_connection_and_each_instance_without_a_users_file(
    serve: Callable[..., ServedBroker], client: Callable[..., RawClient]
) -> None:
    serve("--max-channels", "2", "--max-consumers", "1", "--max-queues", "2", "--max-bindings", "1")
    raw, other = client(), client()
    raw.declare("a")
    other.declare("b")
    refused(declare(raw, "c"), "queues", 2, "instance 'default'")
    assert isinstance(raw.consume("a", "1"), m.Ok)
    refused(raw.consume("a", "2"), "consumers", 1, "a connection")
    assert isinstance(raw.call(m.Qos(0, 2, 1)), m.Ok)
    refused(raw.call(m.Qos(0, 3, 1)), "channels", 2, "a connection")
    assert isinstance(other.consume("a", "1"), m.Ok)
    assert isinstance(raw.call(m.Bind(0, "a", "amq.direct", "1", {})), m.Ok)
    refused(raw.call(m.Bind(0, "a", "amq.direct", "2", {})), "bindings", 1, "instance 'default'")


def test_instances(
    serve: Callable[..., ServedBroker], client: Callable[..., RawClient], stranger: Callable[[], RawClient]
) -> None:
    serve("--max-instances", "2", "--create-instances")
    client(instance="second")
    third = stranger()
    third.send(m.Hello(0, os.urandom(16), "third", "third"))
    refused(third.receive(), "instances", 2, "the broker")
    client(instance="second")


def test_a_real_client_gets_the_error(limited: Callable[..., Any], tmp_path: Path) -> None:
    limited("queues = 1")
    url = f"opendata://busy:{SECRET.replace(' ', '%20')}@{str(tmp_path / 's').replace('/', '%2F')}"
    with QueueClient(url) as queues:
        queues.create("one")
        with pytest.raises(LimitExceeded) as caught:
            queues.create("two")
    assert (caught.value.limit, caught.value.value, caught.value.whose) == ("queues", 1, "user 'busy'")
    assert isinstance(caught.value, RequestError)


def test_one_who_floods_leaves_the_others_their_turn(
    serve: Callable[..., ServedBroker], client: Callable[..., RawClient]
) -> None:
    """Between two publishes of a neighbour the broker does not run all that it has read of a flood."""
    serve("--no-sync")
    flooding, quiet = client(), client()
    flooding.declare("flood")
    quiet.declare("quiet")
    flood = [publish("flood", seq) for seq in range(1, 15_001)]
    for message in flood:
        message.rid = message.seq
    sender = threading.Thread(target=flooding.send_bytes, args=(b"".join(map(frame, flood)),))
    sender.start()
    ids = [quiet.publish("quiet", seq).message_id for seq in range(1, 5)]
    for _ in flood:
        assert isinstance(flooding.receive(), m.PublishConfirm)
    sender.join()
    between = sorted(second - first for first, second in itertools.pairwise(ids))
    assert between[0] < 800, between  # a chunk has some 3,000
    assert between[-1] > 5, "the flood is under way"
