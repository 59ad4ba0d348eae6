"""Kombu's own entities, producers, consumers and simple queues, over every way to reach a broker."""

from __future__ import annotations

from typing import Any

from kombu.entity import Exchange, Queue

from ...support.kombu_client import drain_until


def test_entities_producers_and_consumers(connection: Any, name: str) -> None:
    exchange = Exchange(name, "topic")  # type: ignore[no-untyped-call]
    queue = Queue(name, exchange, routing_key="add.#", max_priority=10)  # type: ignore[no-untyped-call]
    bodies: list[Any] = []
    messages: list[Any] = []
    with connection.Producer(serializer="json") as producer:
        producer.publish({"x": [1, "é"]}, exchange=queue.exchange, routing_key="add.one", declare=[queue], retry=True)
    with connection.Consumer([queue], accept=["json"]) as consumer:
        consumer.register_callback(lambda body, message: bodies.append(body))
        consumer.register_callback(lambda body, message: messages.append(message))
        drain_until(connection, lambda: messages)
    assert bodies == [{"x": [1, "é"]}]
    assert messages[0].delivery_info["routing_key"] == "add.one"
    messages[0].ack()
    with connection.SimpleQueue(f"{name}-simple") as simple:
        simple.put({"y": 2})
        message = simple.get(timeout=60)
        assert message.payload == {"y": 2}
        message.ack()
        assert simple.qsize() == 0


def test_compressed_messages(connection: Any, channel: Any, queue: str) -> None:
    body = {"text": "x" * 100_000}
    with connection.Producer(serializer="json", compression="zlib") as producer:
        producer.publish(body, routing_key=queue)
    message = channel.basic_get(queue)
    assert message.headers["compression"]
    assert message.decode() == body
    message.ack()
