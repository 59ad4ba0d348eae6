"""Publishes that nobody waits for, with a broker played by hand."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from kombu_opendata.client.session.publish_pipeline import PublishPipeline, flush_all
from kombu_opendata.errors import ConnectionLost, PublishFailed, Unroutable
from kombu_opendata.protocol import messages as m


def publish(size: int = 1) -> m.Publish:
    return m.Publish(0, 0, "x", "k", b"e" * size, {}, 0, 1)


def later(connection: Any, *numbers: int, size: int = 1) -> None:
    for number in numbers:
        pipeline = connection.pipeline
        pipeline.publish(publish(size), pipeline.failures, task_id=f"task-{number}")


def receive(broker: Any, count: int) -> list[m.Publish]:
    return [broker.receive(m.Publish) for _ in range(count)]


def unroutable(request: m.Publish) -> m.Failed:
    return m.Failed(request.rid, "unroutable", "no queue", {})


def test_many_are_in_flight_and_a_flush_waits_for_all(met: Any) -> None:
    client, broker = met
    later(client.connection, 1, 2, 3)  # returns without an answer
    requests = receive(broker, 3)
    assert [request.seq for request in requests] == [1, 2, 3]
    flushing = client.start(client.connection.flush)
    broker.send(*(m.PublishConfirm(request.rid, 1, 1) for request in requests[:2]))
    assert not flushing.done()
    broker.send(m.PublishConfirm(requests[2].rid, 1, 1))
    flushing.result(10)
    client.connection.flush()  # nothing is left


def test_what_is_in_flight_is_bounded_by_count(peer: Any, new_client: Any) -> None:
    client = new_client(pipeline_depth=4)
    connecting = client.start(client.connection.connect)
    broker = peer.accept()
    broker.welcome()
    connecting.result(10)
    later(client.connection, 1, 2, 3, 4)
    fifth = client.start(later, client.connection, 5)
    requests = receive(broker, 4)
    assert not fifth.done()
    broker.send(*(m.PublishConfirm(request.rid, 1, 1) for request in requests[:2]))
    fifth.result(10)
    assert broker.receive(m.Publish).seq == 5


def test_what_is_in_flight_is_bounded_by_bytes(met: Any) -> None:
    client, broker = met
    connection = client.connection
    connection.pipeline = PublishPipeline(connection.session, connection.io, max_bytes=3000)
    later(client.connection, 1, 2, 3, size=1000)
    fourth = client.start(later, client.connection, 4)
    requests = receive(broker, 3)
    assert not fourth.done()
    broker.send(*(m.PublishConfirm(request.rid, 1, 1) for request in requests[:2]))
    fourth.result(10)


def test_publishes_read_confirmations_at_most_every_two_milliseconds(met: Any) -> None:
    client, broker = met
    connection, now = client.connection, 100.0
    connection.link.clock = replace(connection.link.clock, monotonic=lambda: now)
    in_flight = connection.session.in_flight.by_rid
    later(connection, 1)
    broker.send(m.PublishConfirm(broker.receive(m.Publish).rid, 1, 1))
    later(connection, 2)
    assert len(in_flight) == 2
    now += 0.002
    later(connection, 3)
    assert len(in_flight) == 2


def test_a_refusal_is_raised_by_the_flush_with_the_task(met: Any) -> None:
    client, broker = met
    later(client.connection, 1, 2, 3)
    first, second, third = receive(broker, 3)
    broker.send(m.PublishConfirm(first.rid, 1, 1), unroutable(second), m.PublishConfirm(third.rid, 2, 1))
    with pytest.raises(PublishFailed, match=r"1 publishes were not confirmed: task-2; the first: no queue") as caught:
        client.connection.flush()
    (failed,) = caught.value.failed
    assert (failed.exchange, failed.routing_key, failed.task_id) == ("x", "k", "task-2")
    assert isinstance(failed.error, Unroutable)
    client.connection.flush()  # told once


def test_the_unanswered_are_sent_again_in_order_with_their_numbers(met: Any, peer: Any) -> None:
    client, broker = met
    later(client.connection, 1, 2, 3, 4)
    requests = receive(broker, 4)
    broker.send(m.PublishConfirm(requests[0].rid, 1, 1), unroutable(requests[1]))
    broker.close()
    flushing = client.start(client.connection.flush)
    second = peer.accept()
    assert second.welcome().resume
    again = receive(second, 2)
    assert [request.seq for request in again] == [3, 4]
    second.send(m.PublishConfirm(again[0].rid, 0, -1), m.PublishConfirm(again[1].rid, 9, 1))
    with pytest.raises(PublishFailed, match="task-2"):
        flushing.result(10)


def test_a_stopping_broker_refuses_nothing_for_good(met: Any, peer: Any) -> None:
    client, broker = met
    later(client.connection, 1)
    (request,) = receive(broker, 1)
    broker.send(m.Failed(request.rid, "broker_stopping", "stopping", {}))
    broker.close()
    flushing = client.start(client.connection.flush)
    second = peer.accept()
    second.welcome()
    (again,) = receive(second, 1)
    second.send(m.PublishConfirm(again.rid, 1, 1))
    flushing.result(10)


def test_a_confirmed_publish_among_them_gets_its_own_answer(met: Any) -> None:
    client, broker = met
    later(client.connection, 1)
    calling = client.start(client.connection.io.publish, publish())
    first, second = receive(broker, 2)
    broker.send(m.PublishConfirm(first.rid, 5, 1), m.PublishConfirm(second.rid, 6, 1))
    assert calling.result(10).message_id == 6
    assert not client.connection.session.in_flight.by_rid


def test_when_nobody_comes_back_all_in_flight_have_failed(met: Any) -> None:
    client, broker = met  # which took its time, and what is short is so from now on
    client.connection.link.options = replace(client.connection.options, reconnect_timeout=0.1, connect_timeout=0.2)
    later(client.connection, 1, 2)
    flushing = client.start(client.connection.flush)
    receive(broker, 2)
    broker.close()  # and nobody answers the next Hello
    with pytest.raises(PublishFailed, match="task-1, task-2") as caught:
        flushing.result(10)
    assert {type(failed.error) for failed in caught.value.failed} == {ConnectionLost}


def test_a_close_waits_for_what_is_in_flight(met: Any) -> None:
    client, broker = met
    later(client.connection, 1, 2)
    closing = client.start(client.connection.close)
    requests = receive(broker, 2)
    broker.send(m.PublishConfirm(requests[0].rid, 1, 1), unroutable(requests[1]))
    broker.send(m.Ok(broker.receive(m.Goodbye).rid))
    with pytest.raises(PublishFailed, match="task-2"):
        closing.result(10)
    assert client.connection.closed


def test_a_close_that_gets_no_answer_says_so(met: Any) -> None:
    client, broker = met
    later(client.connection, 1)
    closing = client.start(client.connection.close)
    receive(broker, 1)
    with pytest.raises(PublishFailed, match=r"task-1.*not confirmed when the connection was closed"):
        closing.result(10)


def test_an_abandoned_connection_logs_what_was_in_flight(met: Any, caplog: pytest.LogCaptureFixture) -> None:
    client, broker = met
    later(client.connection, 1, 2)
    receive(broker, 2)
    client.connection.abandon()
    assert "2 publishes were not confirmed: task-1, task-2" in caplog.text


def test_at_exit_what_failed_is_logged(met: Any, caplog: pytest.LogCaptureFixture) -> None:
    client, broker = met
    later(client.connection, 1, 2)
    ending = client.start(flush_all)
    requests = receive(broker, 2)
    broker.send(m.PublishConfirm(requests[0].rid, 1, 1), unroutable(requests[1]))
    ending.result(10)
    assert "1 publishes were not confirmed: task-2" in caplog.text


def test_a_forked_child_does_not_wait_for_the_parents(met: Any) -> None:
    client, broker = met
    later(client.connection, 1)
    (request,) = receive(broker, 1)
    pid = os.fork()
    if not pid:
        try:
            client.connection.flush()
            flush_all()
            os._exit(len(client.connection.session.in_flight.by_rid))
        finally:
            os._exit(99)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(client.connection.session.in_flight.by_rid) == 1
    broker.send(m.PublishConfirm(request.rid, 1, 1))
    client.connection.flush()
