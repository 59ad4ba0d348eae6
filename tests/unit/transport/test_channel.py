"""A channel over a connection that only writes down what it is asked."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from amqp import exceptions as amqp

from kombu_opendata import errors
from kombu_opendata.client.client_clock import ClientClock
from kombu_opendata.client.connection_options import DEFAULTS
from kombu_opendata.protocol import envelope
from kombu_opendata.protocol import messages as m
from kombu_opendata.transport import Channel, kombu_message


class Connection:
    """Stands in for a BrokerConnection."""

    clock = ClientClock(wall=lambda: 12.5)
    client = None
    options = DEFAULTS

    def __init__(self) -> None:
        self.channels: dict[int, Any] = {}
        self.said: list[Any] = []
        self.answers: deque[Any] = deque()
        self.settled: list[Any] = []

    def add_channel(self, channel: Any) -> int:
        self.channels[len(self.channels) + 1] = channel
        return len(self.channels)

    def call(self, message: Any, timeout: float | None = None) -> Any:
        self.said.append(message)
        answer = self.answers.popleft() if self.answers else m.Ok(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    consume = call

    def publish(self, message: m.Publish, timeout: float | None = None) -> Any:
        if not self.answers:
            self.answers.append(m.PublishConfirm(0, 1, 1))
        return self.call(message, timeout)

    @property
    def io(self) -> Connection:
        return self

    link = reentrance = io

    def is_entered(self) -> bool:
        return False

    def get(self, channel: int, queue: str, *, no_ack: bool) -> Any:
        return self.call(m.Get(0, channel, queue, no_ack))

    def cancel(self, channel: int, tag: str) -> None:
        self.call(m.Cancel(0, channel, tag))

    end_consumer = cancel

    def check_tag(self, channel: int, tag: str) -> None:
        """No tag is in use."""

    def settle(self, channel: int, outcome: int, leases: list[m.Lease]) -> None:
        self.settled.append((outcome, *leases))

    def set_prefetch(self, channel: int, count: int) -> None:
        self.said.append(m.Qos(0, channel, count))

    def close_channel(self, number: int) -> None:
        self.said.append(m.CloseChannel(0, number))


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
def channel(connection: Connection) -> Channel:
    return Channel(connection)  # type: ignore[arg-type]


def delivery(number: int, tag: str = "t", attempts: int = 1, data: bytes | None = None) -> m.Delivery:
    if data is None:
        data = kombu_message.encode(b"b%d" % number, "text/plain", "utf-8", {"h": 1}, {"priority": 4}, "x", "k")
    return m.Delivery(1, tag, "q", number, 7, attempts, data, attempts > 1)


def consume(channel: Channel, **kwargs: Any) -> list[Any]:
    got: list[Any] = []
    channel.basic_consume("q", consumer_tag="t", callback=got.append, **kwargs)
    return got


def publish(channel: Channel, connection: Connection, **kwargs: Any) -> m.Publish:
    properties = kwargs.pop("properties", {})
    message = channel.prepare_message("body", kwargs.pop("priority", None), "text/plain", "utf-8", {"h": 1}, properties)
    channel.basic_publish(message, "x", "k", **kwargs)
    request = connection.said[-1]
    assert isinstance(request, m.Publish)
    return request


def test_a_publish_carries_envelope_priority_and_times(channel: Channel, connection: Connection) -> None:
    request = publish(channel, connection, priority=9, mandatory=True, properties={"expiration": "1500"})
    assert (request.exchange, request.routing_key, request.priority, request.mandatory) == ("x", "k", 9, True)
    assert (request.created_at_ms, request.visible_at_ms, request.ttl_ms) == (12_500, 0, 1500)
    assert request.headers == {}  # the broker derives them
    assert envelope.decode(request.envelope)[4] == {"expiration": "1500", "priority": 9}


@pytest.mark.parametrize("headers", [dict.fromkeys(map(str, range(254)), 1), {"h": "x" * 65_536}])
def test_headers_that_the_broker_would_refuse_are_not_sent(
    channel: Channel, connection: Connection, headers: dict[str, Any]
) -> None:
    with pytest.raises(amqp.ChannelError):
        channel.basic_publish(channel.prepare_message("body", headers=headers), "x", "k")
    assert connection.said == []


def test_an_unroutable_message_is_an_error_or_a_callback(channel: Channel, connection: Connection) -> None:
    connection.answers.extend([errors.Unroutable("no queue"), errors.Unroutable("no queue")])
    with pytest.raises(errors.Unroutable) as caught:
        publish(channel, connection, mandatory=True)
    assert isinstance(caught.value, amqp.ChannelError)
    returned: list[Any] = []
    channel.events["basic_return"].add(lambda *args: returned.append(args))
    publish(channel, connection, mandatory=True)
    error, exchange, routing_key, message = returned[0]
    assert (type(error), exchange, routing_key, message.body) == (type(caught.value), "x", "k", "body")


def test_a_delivery_becomes_a_message(channel: Channel) -> None:
    got = consume(channel)
    channel.deliver(delivery(5, attempts=2))
    message = got[0]
    assert (message.body, message.content_type, message.headers) == (
        b"b5",
        "text/plain",
        {"h": 1, "x-delivery-count": 1},
    )
    assert message.properties["priority"] == 4
    assert message.delivery_info == {
        "consumer_tag": "t",
        "delivery_tag": 1,
        "redelivered": True,
        "exchange": "x",
        "routing_key": "k",
    }
    assert channel.message_to_python(message) is message


def test_settling(channel: Channel, connection: Connection) -> None:
    got = consume(channel)
    for number in range(1, 8):
        channel.deliver(delivery(number))
    got[0].ack()
    got[1].reject()
    got[2].requeue()
    channel.basic_nack(got[3].delivery_tag, requeue=False)
    channel.basic_ack(got[5].delivery_tag, multiple=True)
    assert connection.settled == [
        (m.Outcome.ACK, ("q", 1, 7)),
        (m.Outcome.REJECT, ("q", 2, 7)),
        (m.Outcome.REQUEUE, ("q", 3, 7)),
        (m.Outcome.REJECT, ("q", 4, 7)),
        (m.Outcome.ACK, ("q", 5, 7), ("q", 6, 7)),
    ]
    channel.basic_recover(requeue=True)
    assert connection.settled[-1] == (m.Outcome.RELEASE, ("q", 7, 7))
    channel.basic_recover(requeue=True)  # nothing left
    assert len(connection.settled) == 6


@pytest.mark.parametrize("settle", ["basic_ack", "basic_reject", "basic_nack"])
def test_a_stale_tag_is_refused_without_harm(channel: Channel, connection: Connection, settle: str) -> None:
    got = consume(channel)
    channel.deliver(delivery(1))
    got[0].ack()
    for tag in (got[0].delivery_tag, 99):
        with pytest.raises(errors.PreconditionFailed, match=f"delivery tag {tag} is unknown") as caught:
            getattr(channel, settle)(tag)
        assert caught.value.code == 406  # type: ignore[comparison-overlap]
    assert len(connection.settled) == 1


def test_no_ack_messages_hold_nothing(channel: Channel, connection: Connection) -> None:
    got = consume(channel, no_ack=True)
    channel.deliver(delivery(1))
    got[0].ack()  # Kombu lets it pass
    assert connection.settled == []
    channel.basic_recover(requeue=True)
    assert connection.settled == []


def test_a_message_of_an_ended_consumer_goes_back(channel: Channel, connection: Connection) -> None:
    consume(channel)
    channel.basic_cancel("t")
    channel.deliver(delivery(1))
    assert connection.settled == [(m.Outcome.RELEASE, ("q", 1, 7))]


def test_a_consumer_whose_start_was_interrupted_is_ended_at_its_first_message(
    channel: Channel, connection: Connection
) -> None:
    connection.answers.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        consume(channel)
    channel.deliver(delivery(1))
    assert connection.said[-1] == m.Cancel(0, 1, "t")
    assert connection.settled == [(m.Outcome.RELEASE, ("q", 1, 7))]


def test_a_message_that_does_not_decode_is_rejected(channel: Channel, connection: Connection) -> None:
    got = consume(channel)
    channel.deliver(delivery(1, data=b"\x01"))
    assert got == []
    assert connection.settled == [(m.Outcome.REJECT, ("q", 1, 7))]


def test_a_consumer_that_the_broker_ended(channel: Channel) -> None:
    ended: list[str] = []
    consume(channel, on_cancel=ended.append)
    channel.deliver(m.Cancelled(1, "t", "queue deleted"))
    assert ended == ["t"]
    consume(channel)
    with pytest.raises(amqp.ConsumerCancelled, match="queue deleted"):
        channel.deliver(m.Cancelled(1, "t", "queue deleted"))


def test_a_consume_that_fails_leaves_nothing(channel: Channel, connection: Connection) -> None:
    connection.answers.append(errors.NotFound("no queue 'q'"))
    with pytest.raises(errors.NotFound):
        consume(channel, no_ack=True)
    assert channel.no_ack_consumers == set()
    assert channel._callbacks == {}


def test_get(channel: Channel, connection: Connection) -> None:
    connection.answers.extend([delivery(1, tag=""), None])
    message: Any = channel.basic_get("q")
    message.ack()
    assert connection.settled == [(m.Outcome.ACK, ("q", 1, 7))]
    connection.answers[0] = None
    assert channel.basic_get("q") is None


def test_queues(channel: Channel, connection: Connection) -> None:
    connection.answers.append(m.QueueDeclared(0, "made-up", 3, 1))
    assert tuple(channel.queue_declare("", exclusive=True)) == ("made-up", 3, 1)
    connection.answers.append(errors.NotFound("no queue 'q'", queue="q"))
    with pytest.raises(amqp.NotFound) as caught:
        channel.queue_declare("q", passive=True)
    assert (caught.value.reply_code, caught.value.queue) == (404, "q")
    connection.answers.extend([m.Count(0, 4), m.Count(0, 5)])
    assert (channel.queue_purge("q"), channel.queue_delete("q")) == (4, 5)
    asked = len(connection.said)
    channel.queue_bind("q", "", "q")  # the default exchange needs no binding
    channel.exchange_declare("")
    assert len(connection.said) == asked
    assert channel.prepare_queue_arguments({"a": 1}, expires=2.0) == {"a": 1, "x-expires": 2000}
    with pytest.raises(NotImplementedError, match="bind the queue to both"):
        channel.exchange_bind("a", "b")


def test_a_closed_channel_says_so(channel: Channel, connection: Connection) -> None:
    consume(channel)
    with channel:
        assert channel.is_open
    assert not channel.is_open
    channel.close()
    assert connection.said[-1] == m.CloseChannel(0, 1)
    for use in (channel.queue_purge, channel.basic_get):
        with pytest.raises(amqp.RecoverableConnectionError, match="channel is closed"):
            use("q")
    with pytest.raises(amqp.RecoverableConnectionError, match="channel is closed"):
        channel.basic_ack(1)
    channel.basic_cancel("t")  # its consumers ended with it


def test_a_forked_childs_channel_holds_nothing(channel: Channel) -> None:
    consume(channel)
    channel.deliver(delivery(1))
    channel.after_fork_in_child()
    with pytest.raises(errors.PreconditionFailed):
        channel.basic_ack(1)
