"""What queues do by their arguments, with Kombu over a real broker process, before and after a restart of it."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import amqp.exceptions as amqp
import pytest

from kombu_opendata import QueueClient, errors
from kombu_opendata.broker import memory
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.protocol.messages import GetMetrics
from kombu_opendata.protocol.queue_arguments import KNOWN
from kombu_opendata.transport import topology_channel as declaring

from ..support.broker import EmbeddedBroker
from ..support.kombu_client import connected, declare, drain_quiet, drain_until, send, take, take_bodies
from ..support.processes import wait_until

pytestmark = pytest.mark.contract(16)

KINDS = pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])


@pytest.fixture
def broker_url(common_url: str) -> str:
    return common_url


@pytest.fixture
def connection(broker_url: str) -> Iterator[Any]:
    with connected(broker_url) as opened:
        yield opened


@pytest.fixture
def channel(connection: Any) -> Any:
    return connection.channel()


def make(channel: Any, name: str, durable: bool = True, **arguments: Any) -> str:
    """Declare a queue; underscores stand for hyphens."""
    declare(channel, name, durable=durable, arguments={f"x-{k.replace('_', '-')}": v for k, v in arguments.items()})
    return name


class Inbox(list[Any]):
    """The messages that a consumer got."""

    def __init__(self, channel: Any, queue: str, **options: Any) -> None:
        super().__init__()
        self.tag = channel.basic_consume(queue, callback=self.append, **options)

    @property
    def bodies(self) -> list[Any]:
        return [message.body for message in self]


def expired(channel: Any, queue: str) -> int:
    """How many messages of a queue expired since it was declared, or since the broker's start."""
    count: int = channel.connection.call(GetMetrics(0, [queue])).queues[queue]["expired"]
    return count


def exists(channel: Any, queue: str) -> bool:
    try:
        channel.queue_declare(queue, passive=True)
    except errors.NotFound:
        return False
    return True


# ------------------------------------------------------------------ what arguments there are
def test_an_unknown_argument_is_warned_of_once(channel: Any, broker: EmbeddedBroker) -> None:
    with pytest.warns(errors.UnknownArgumentWarning, match="queue 'odd': the argument 'x-colour' is unknown"):
        make(channel, "odd", colour="red")
    with pytest.warns(errors.UnknownArgumentWarning, match=r"'x-max-lenght' .*; did you mean 'x-max-length'\?"):
        make(channel, "misspelt", max_lenght=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(channel, "odd", colour="red")
        make(channel, "plain", max_priority=10, queue_type="quorum", queue_mode="lazy")
        declare(channel, "other", arguments={"not-an-x": 1})
    with pytest.warns(errors.UnknownArgumentWarning, match="exchange 'e': the argument 'x-match-all' is unknown"):
        channel.exchange_declare("e", "direct", durable=True, auto_delete=False, arguments={"x-match-all": 1})
    assert broker.log.read_text().count("x-colour") == 1
    assert {text for text in declaring._warned if "'odd'" in text}


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("x-message-ttl", -1, "an integer from 0 up"),
        ("x-message-ttl", "1000", "an integer from 0 up"),
        ("x-expires", 0, "an integer from 1 up"),
        ("x-max-length", True, "an integer from 0 up"),
        ("x-overflow", "explode", "one of drop-head, reject-publish, reject-publish-dlx"),
        ("x-single-active-consumer", 1, "true or false"),
        ("x-max-priority", 300, "an integer from 1 to 255"),
        ("x-lease", 5, "an integer from 30 to 86400"),
        ("x-dead-letter-exchange", 7, "a text"),
    ],
)
def test_a_wrong_value_is_refused(channel: Any, argument: str, value: Any, allowed: str) -> None:
    with pytest.raises(errors.RequestError) as caught:
        declare(channel, "wrong", arguments={argument: value})
    assert str(caught.value) == f"queue 'wrong': {argument} must be {allowed}, not {value!r}"
    assert isinstance(caught.value, amqp.ChannelError)
    assert not exists(channel, "wrong")


def test_two_apps_with_different_options(connect: Callable[..., Any], broker_url: str) -> None:
    make(connect(broker_url).channel(), "shared", message_ttl=1000, max_length=5)
    second = connect(broker_url).channel()
    text = (
        "queue 'shared' exists with x-message-ttl=1000, declared again with x-message-ttl=2000: "
        "delete it, alter it or declare it alike"
    )
    with pytest.raises(errors.PreconditionFailed, match=text) as caught:
        make(second, "shared", message_ttl=2000, max_length=5)
    assert caught.value.values == {"queue": "shared", "field": "arguments", "argument": "x-message-ttl"}
    with pytest.raises(amqp.PreconditionFailed, match="exists with x-max-length=5, declared again without"):
        make(second, "shared", message_ttl=1000)
    make(second, "shared", message_ttl=1000, max_length=5)


#: an example of each argument without effect, known or not
WITHOUT_EFFECT = {
    argument.name: {int: 1, str: "x"}[argument.kind] if not argument.choices else argument.choices[0]
    for argument in KNOWN
    if not argument.field
} | {"x-cancel-on-ha-failover": True, "note": "for another broker"}


@pytest.mark.filterwarnings("ignore::kombu_opendata.errors.UnknownArgumentWarning")
@pytest.mark.parametrize(
    "extra", [{"x-max-priority": 10}, {"x-queue-type": "quorum"}, WITHOUT_EFFECT], ids=["priority", "type", "all"]
)
@KINDS
def test_arguments_without_effect_are_not_compared(channel: Any, name: str, durable: bool, extra: Any) -> None:
    def make_with(more: dict[str, Any], length: int = 5) -> None:
        declare(channel, name, durable=durable, arguments={"x-max-length": length, **more})

    make_with({})
    make_with(extra)
    channel.queue_delete(name)
    make_with(extra)
    make_with({})
    with pytest.raises(errors.PreconditionFailed, match="with x-max-length=5, declared again with x-max-length=6"):
        make_with(extra, 6)
    with pytest.raises(errors.RequestError, match="x-max-priority must be an integer from 1 to 255"):
        make_with({"x-max-priority": 300})


def test_an_argument_of_stored_queues_is_not_compared_in_memory(channel: Any, name: str) -> None:
    make(channel, name, durable=False)
    make(channel, name, durable=False, delivery_limit=5)
    make(channel, f"{name}.stored")
    with pytest.raises(errors.PreconditionFailed, match="x-delivery-limit"):
        make(channel, f"{name}.stored", delivery_limit=5)


def test_an_altered_queue_takes_declarations_with_arguments_without_effect(
    channel: Any, name: str, broker_url: str
) -> None:
    make(channel, name, max_length=5)
    with QueueClient(broker_url) as client:
        client.alter(name, {"x-max-length": 7})
    for length in (5, 7):
        make(channel, name, max_length=length, queue_type="classic")
    with pytest.raises(errors.PreconditionFailed, match="x-max-length=5, declared again with x-max-length=6"):
        make(channel, name, max_length=6)


# ------------------------------------------------------------------ time to live
@KINDS
def test_messages_expire_without_a_consumer(channel: Any, durable: bool) -> None:
    make(channel, "short", durable, message_ttl=150)
    make(channel, "long", durable, message_ttl=600_000)
    channel.exchange_declare("both", "fanout", durable=True, auto_delete=False)
    for queue in ("short", "long"):
        channel.queue_bind(queue, "both", "")
    started = time.monotonic()
    send(channel, "", "a", "b", exchange="both")
    send(channel, "long", "own", expiration="100")
    wait_until(lambda: (channel._size("short"), channel._size("long")) == (0, 2), 60, "the messages to expire")
    assert time.monotonic() - started > 0.14
    assert (expired(channel, "short"), expired(channel, "long")) == (2, 1)
    assert take_bodies(channel, "long") == ["a", "b"]


def test_a_deadline_outlives_the_broker(connection: Any, channel: Any, broker: EmbeddedBroker) -> None:
    make(channel, "short", message_ttl=2000)
    make(channel, "long", message_ttl=600_000)
    channel.basic_qos(0, 1, False)
    inbox = Inbox(channel, "short")  # it waits, so it gets the first message however late that is
    send(channel, "short", "a", "b")
    send(channel, "long", "c")
    drain_until(connection, lambda: inbox)
    broker.kill()
    assert channel._size("long") == 1
    wait_until(lambda: channel._size("short") == 0, 60, "the message to expire")
    assert channel._size("long") == 1
    channel.basic_cancel(inbox.tag)
    inbox[0].requeue()  # its time was over while it was held
    assert channel.basic_get("short") is None


@KINDS
def test_a_time_to_live_of_zero(connection: Any, channel: Any, durable: bool) -> None:
    make(channel, "now", durable, message_ttl=0)
    make(channel, "any", durable)
    send(channel, "now", "nobody waits")
    send(channel, "any", "nobody waits", expiration="0")
    assert channel.basic_get("now") is None
    assert channel._size("now") == channel._size("any") == 0
    inboxes = Inbox(channel, "now"), Inbox(channel, "any")
    send(channel, "now", "somebody waits")
    send(channel, "any", "somebody waits", expiration="0")
    drain_until(connection, lambda: all(inboxes))
    assert [inbox.bodies for inbox in inboxes] == [["somebody waits"]] * 2


def test_a_negative_expiration(channel: Any) -> None:
    make(channel, "q")
    with pytest.raises(errors.InvalidMessage, match="expiration '-1'"):
        send(channel, "q", "x", expiration="-1")
    assert channel._size("q") == 0


# ------------------------------------------------------------------ maximum lengths
@KINDS
def test_the_oldest_goes_from_a_full_queue(channel: Any, durable: bool) -> None:
    make(channel, "full", durable, max_length=3)
    send(channel, "full", "a")
    held = channel.basic_get("full")
    send(channel, "full", *"bcdef")
    assert channel._size("full") == 3
    held.ack()
    assert take_bodies(channel, "full") == ["d", "e", "f"]


@KINDS
def test_a_full_queue_refuses(connection: Any, channel: Any, durable: bool) -> None:
    make(channel, "full", durable, max_length=2, overflow="reject-publish")
    make(channel, "beside", durable)
    channel.exchange_declare("both", "fanout", durable=True, auto_delete=False)
    for queue in ("full", "beside"):
        channel.queue_bind(queue, "both", "")
    send(channel, "", "a", "b", exchange="both")
    with pytest.raises(errors.QueueFull, match=r"queue 'full' is full \(its maximum is 2 messages\)") as caught:
        send(channel, "", "c", exchange="both")
    assert isinstance(caught.value, amqp.RecoverableChannelError)
    assert caught.value.queue == "full"
    assert take_bodies(channel, "beside") == ["a", "b"]
    first = channel.basic_get("full")
    send(channel, "full", "d")  # what is in flight does not count
    first.ack()
    assert take_bodies(channel, "full") == ["b", "d"]
    inbox = Inbox(channel, "full", no_ack=True)
    send(channel, "full", *"123456")
    drain_until(connection, lambda: len(inbox) == 6)


def test_without_dead_letters_reject_publish_dlx_refuses_too(channel: Any) -> None:
    make(channel, "full", max_length=1, overflow="reject-publish-dlx")
    send(channel, "full", "a")
    with pytest.raises(errors.QueueFull):
        send(channel, "full", "b")


def test_with_dead_letters_the_new_message_goes(channel: Any) -> None:
    channel.exchange_declare("dead", "fanout", durable=True, auto_delete=False)
    make(channel, "full", max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="dead")
    send(channel, "full", "a", "b")
    assert take_bodies(channel, "full") == ["a"]


@KINDS
def test_a_maximum_of_bytes(channel: Any, broker: EmbeddedBroker, durable: bool) -> None:
    make(channel, "bytes", durable, max_length_bytes=5000)
    send(channel, "bytes", *(letter * 2000 for letter in "abcd"))
    assert channel._size("bytes") == 2
    if durable:
        broker.kill()
        assert channel._size("bytes") == 2
    held = channel.basic_get("bytes")
    send(channel, "bytes", "e" * 2000)
    assert channel._size("bytes") == 2
    held.requeue()  # now there are three, until something comes in or the broker looks
    wait_until(lambda: channel._size("bytes") == 2, 60, "the oldest to go")
    assert [body[0] for body in take_bodies(channel, "bytes")] == (["d", "e"])


def test_a_limit_outlives_the_broker(channel: Any, broker: EmbeddedBroker) -> None:
    make(channel, "full", max_length=300)
    send(channel, "full", *(str(number) for number in range(300)))
    broker.kill()
    send(channel, "full", "300", "301")
    wait_until(lambda: channel._size("full") == 300, 60, "the oldest to go")
    assert take_bodies(channel, "full")[:2] == ["2", "3"]


# ------------------------------------------------------------------ unused queues
@KINDS
def test_an_unused_queue_goes(connection: Any, channel: Any, durable: bool) -> None:
    channel.exchange_declare("e", "fanout", durable=True, auto_delete=False)
    make(channel, "used", durable, expires=3000)
    inbox = Inbox(channel, "used")
    started = time.monotonic()
    make(channel, "unused", durable, expires=3000)
    for queue in ("unused", "used"):
        channel.queue_bind(queue, "e", "")
    send(channel, "unused", "lost")

    def gone() -> bool:
        """Not by asking for it, which would be a use."""
        return "unused" not in {name for name, _exchange, _key in channel.list_bindings()}

    wait_until(gone, 60, "the end of the queue")
    assert time.monotonic() - started > 2.9
    assert not exists(channel, "unused")
    send(channel, "used", "kept")
    drain_until(connection, lambda: inbox.bodies == ["kept"])


def test_a_restart_begins_the_time_anew(channel: Any, broker: EmbeddedBroker) -> None:
    make(channel, "unused", expires=4000)
    send(channel, "unused", "there")
    broker.kill()
    assert take_bodies(channel, "unused") == ["there"]

    def gone() -> bool:
        return "unused" not in broker.report()["queues"]

    wait_until(gone, 60, "the end of the queue")
    broker.kill()
    assert not exists(channel, "unused")


# ------------------------------------------------------------------ who consumes
@KINDS
def test_a_single_active_consumer(connect: Callable[..., Any], broker_url: str, channel: Any, durable: bool) -> None:
    make(channel, "one", durable, single_active_consumer=True)
    connections = [connect(broker_url) for _ in range(3)]
    inboxes = [Inbox(each.channel(), "one") for each in connections]
    send(channel, "one", "a", "b")
    drain_until(connections[0], lambda: inboxes[0].bodies == ["a", "b"])
    for each in connections[1:]:
        drain_quiet(each, 0.1)
    assert inboxes[1:] == [[], []]
    inboxes[0][0].channel.basic_cancel(inboxes[0].tag)
    send(channel, "one", "c")
    drain_until(connections[1], lambda: inboxes[1].bodies == ["c"])
    connections[1].close()
    drain_until(connections[2], lambda: inboxes[2].bodies == ["c"])


@pytest.fixture
def patient_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A broker that keeps the place of a lost connection for longer than any machine stalls."""
    patient = partial(BrokerSettings, session_grace_seconds=600.0)
    monkeypatch.setattr("kombu_opendata.broker.memory.BrokerSettings", patient)
    name = f"patient-{uuid.uuid4().hex}"
    yield f"opendata+memory://{name}"
    memory.stop(name)


def test_a_single_active_consumer_keeps_its_place_over_a_lost_connection(
    patient_url: str, connect: Callable[..., Any]
) -> None:
    first, second, third = (connect(patient_url) for _ in range(3))
    channel = third.channel()
    make(channel, "one", single_active_consumer=True)
    inboxes = [Inbox(each.channel(), "one") for each in (first, second)]
    first.connection.link.current._sock.shutdown(2)
    send(channel, "one", "a")
    drain_quiet(second, 0.2)
    drain_until(first, lambda: inboxes[0].bodies == ["a"])
    assert inboxes[1] == []


def test_a_lost_active_consumer_is_followed_after_the_grace(
    connect: Callable[..., Any], broker_url: str, channel: Any
) -> None:
    make(channel, "one", single_active_consumer=True)
    first, second = connect(broker_url), connect(broker_url)
    inboxes = [Inbox(each.channel(), "one") for each in (first, second)]
    first.connection.link.current._sock.shutdown(2)  # and it never looks again
    send(channel, "one", "a")
    drain_until(second, lambda: inboxes[1].bodies == ["a"])
    assert inboxes[0] == []


def test_consumers_with_a_higher_priority_come_first(connection: Any, channel: Any) -> None:
    make(channel, "ranked")
    low = connection.channel()
    high = connection.channel()
    high.basic_qos(0, 2, False)
    inboxes = Inbox(low, "ranked"), Inbox(high, "ranked", arguments={"x-priority": 5})
    send(channel, "ranked", "a", "b", "c")
    drain_until(connection, lambda: sum(map(len, inboxes)) == 3)
    assert [inbox.bodies for inbox in inboxes] == [["c"], ["a", "b"]]
    with pytest.raises(errors.RequestError, match="x-priority must be an integer"):
        Inbox(connection.channel(), "ranked", arguments={"x-priority": "high"})


# ------------------------------------------------------------------ attempts
@KINDS
def test_a_returned_message_waits_longer_each_time(channel: Any, durable: bool) -> None:
    make(channel, "again", durable, retry_delay=150, retry_max_delay=200)
    send(channel, "again", "a")
    got = take(channel, "again")
    assert len(got) == 1, "at first it does not wait"
    waits = []
    for _ in range(2):
        returned = got.pop()
        started = time.monotonic()
        returned.requeue()
        wait_until(lambda: got or got.__iadd__(take(channel, "again")), 60, "the message")
        waits.append(time.monotonic() - started)
    assert waits[0] > 0.14
    assert waits[1] > 0.19


def test_a_waiting_consumer_gets_a_returned_message_when_its_delay_is_over(connection: Any, channel: Any) -> None:
    make(channel, "again", retry_delay=100)
    inbox = Inbox(channel, "again")
    send(channel, "again", "a")
    drain_until(connection, lambda: inbox)
    inbox[0].requeue()
    drain_until(connection, lambda: len(inbox) == 2)
    inbox[1].ack()


def test_no_limit_of_deliveries(channel: Any) -> None:
    make(channel, "patient", delivery_limit=-1)
    send(channel, "patient", "a")
    for _ in range(25):
        channel.basic_get("patient").requeue()
    assert take_bodies(channel, "patient") == ["a"]


# ------------------------------------------------------------------ priorities and times
def test_priorities_are_strict_in_a_backlog_that_is_not_in_memory(
    connect: Callable[..., Any], broker_url: str, channel: Any, broker: EmbeddedBroker
) -> None:
    """15,000 messages are more than stays loaded; those with a high priority are spread over all of it."""
    make(channel, "backlog")
    total = 15_000
    special = {number: 1 + number % 255 for number in range(0, total, 500)}
    producer = connect(broker_url, publish_mode="pipeline").channel()
    for number in range(total):
        send(producer, "backlog", str(number), priority=special.get(number, 0))
    producer.flush()
    wait_until(lambda: broker.report()["queues"]["backlog"]["cold_buckets"] > 0, 60, "cold buckets")
    expected = sorted(special, key=lambda number: (-special[number], number))
    for number in [*expected, 1, 2, 3]:
        message = channel.basic_get("backlog", no_ack=True)
        assert int(message.body) == number


@pytest.mark.parametrize("priority", [300, -1, "high"])
def test_a_priority_that_is_none(channel: Any, priority: Any) -> None:
    make(channel, "q")
    with pytest.raises(errors.InvalidMessage, match="is not a number from 0 to 255"):
        send(channel, "q", "x", priority=priority)
    assert channel._size("q") == 0


def test_an_eta_that_is_no_time_and_one_that_is_far(channel: Any) -> None:
    make(channel, "q")
    with pytest.raises(errors.InvalidMessage, match="eta header 'soon' is not an ISO 8601 time"):
        send(channel, "q", "x", headers={"task": "t", "eta": "soon"})
    send(channel, "q", "far", headers={"task": "t", "eta": "9999-12-31T23:59:59+00:00"})
    assert channel._size("q") == 1
    assert channel.basic_get("q") is None
