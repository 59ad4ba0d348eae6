"""Two tenants of an instance, each with rights on its own names: neither gets at what is the other's.

The clients speak the protocol themselves, and send what no client of this package would send.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.msgpack import Ext, encode

from kombu_opendata import QueueClient
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import AccessRefused
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import encode_envelope
from kombu_opendata.protocol.messages import Outcome
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.staging.batch_writer import BatchWriter

from ...support.processes import children, wait_until
from ...support.raw import RawClient
from ...support.scrape import scrape_until
from ...support.served import ServedBroker
from ...support.users import user_table, write_users


def own(name: str, **more: str) -> dict[str, dict[str, str]]:
    """The patterns of a tenant, and what it may use besides its own names."""
    return {"default": {right: f"^({name}[.].*{more.get(right, '')})$" for right in ("configure", "write", "read")}}


@pytest.fixture(scope="module")
def broker(module_store_folder: Path) -> Iterator[ServedBroker]:
    folder = module_store_folder
    users = write_users(
        folder / "users",
        user_table("a", "x", own("a", write="|amq[.]staged|shared")),
        user_table("b", "x", own("b", write="|amq[.]default", read="|amq[.]all|shared")),
        user_table("operator", "x", {"default": {}}, roles=("operator",)),
        user_table("root", "x", {}, roles=("admin",)),
    )
    with children() as started:
        options = ("--store", f"file://{folder}/store", "--listen", "tcp:127.0.0.1:0", "--users", str(users))
        served = ServedBroker(folder, *options, "--metrics", "127.0.0.1:0", "--no-sync")
        started.add(served)
        yield served
        assert served.terminate() == 0


@pytest.fixture
def a(broker: ServedBroker) -> Iterator[RawClient]:
    with RawClient(broker.port) as client:
        client.hello(user="a", secret="x")
        yield client


@pytest.fixture
def b(broker: ServedBroker) -> Iterator[RawClient]:
    with RawClient(broker.port) as client:
        client.hello(user="b", secret="x")
        yield client


def declare(client: RawClient, queue: str, *, durable: bool = True, **arguments: Any) -> None:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    answer = client.call(m.DeclareQueue(0, queue, durable, False, not durable, given, False))
    assert isinstance(answer, m.QueueDeclared), answer


def got(client: RawClient, queue: str) -> m.Delivery | None:
    delivery: m.Delivery | None = client.call(m.Get(0, 1, queue, True)).delivery
    return delivery


def forged(headers: dict[str, Any], exchange: str, routing_key: str, **properties: Any) -> bytes:
    return encode_envelope(b"evil", None, None, headers, properties, exchange, routing_key)


# ---------------------------------------------------------------------- headers
@pytest.mark.parametrize("how", ["publish", "send"])
def test_forged_texts_reach_no_filter_and_no_replay(a: RawClient, b: RawClient, how: str) -> None:
    declare(a, f"a.{how}")
    declare(b, f"b.{how}")
    declare(b, f"b.filter-{how}", x_filter="exchange = 'b.x' OR task = 'b.pay'")
    texts = {"exchange": "b.x", "routing_key": f"b.{how}", "task": "b.pay", "priority": "9"}
    for seq, exchange in enumerate(("b.x", ""), 1):
        envelope = forged({}, exchange, f"b.{how}")
        given = texts | {"exchange": exchange}
        if how == "publish":
            answer = a.call(m.Publish(0, seq, "", f"a.{how}", envelope, given, 0, 1))
            assert answer.queues == 1
        else:
            answer = a.call(m.Send(0, seq, "", f"a.{how}", [(envelope, given, 0, 0, -1)], 1))
            assert answer.queues == [[f"a.{how}"]]
    assert got(b, f"b.filter-{how}") is None
    assert isinstance(b.call(m.Replay(0, f"b.{how}", "first")), m.ReplayStarted)
    wait_until(lambda: b.call(m.Cursors(0, [f"b.{how}"])).cursors[0]["done"], 60, "the replay")
    assert got(b, f"b.{how}") is None
    delivery = got(a, f"a.{how}")
    assert delivery is not None
    assert delivery.envelope == forged({}, "", f"a.{how}"), "consumers see where it was published"


def test_a_gate_sees_the_headers_that_the_worker_gets(a: RawClient, broker: ServedBroker) -> None:
    declare(a, "a.gate", x_filter="task LIKE 'safe.%'", x_filter_mode="all")
    for seq, (inner, claimed) in enumerate((("danger.wipe", "safe.add"), ("safe.add", "danger.wipe")), 1):
        envelope = forged({"task": inner}, "", "a.gate")
        answer = a.call(m.Publish(0, seq, "", "a.gate", envelope, {"task": claimed}, 0, 1))
        assert answer.queues == int(inner == "safe.add")
    with RawClient(broker.port) as admin:  # whatever the rights of the publisher are
        admin.hello(user="root", secret="x")
        envelope = forged({"task": "danger.wipe"}, "", "a.gate")
        assert admin.call(m.Publish(0, 1, "", "a.gate", envelope, {"task": "safe.add"}, 0, 1)).queues == 0


def test_a_dead_letter_goes_where_its_message_was_published(a: RawClient, b: RawClient, broker: ServedBroker) -> None:
    """The queue has no dead-letter routing key, so its owner lets publishers choose it: by their publishes only."""
    declare(b, "b.letters")
    declare(b, "b.secret")
    with RawClient(broker.port) as admin:
        admin.hello(user="root", secret="x")
        assert isinstance(admin.call(m.DeclareExchange(0, "shared", "direct", True, False, {}, False)), m.Ok)
    declare(b, "b.source", x_dead_letter_exchange="", x_max_length=0)
    assert isinstance(b.call(m.Bind(0, "b.source", "shared", "b.letters", {})), m.Ok)
    answer = a.call(m.Publish(0, 1, "shared", "b.letters", forged({}, "", "b.secret"), {}, 0, 1))
    assert answer.queues == 1
    wait_until(lambda: got(b, "b.letters") is not None, 60, "the dead letter")
    assert got(b, "b.secret") is None


def test_rows_of_a_job_are_what_their_envelopes_say(a: RawClient, b: RawClient, broker: ServedBroker) -> None:
    declare(a, "a.staged")
    declare(b, "b.staged-filter", x_filter="task = 'b.pay' OR exchange = 'b.x'")
    texts = {"exchange": "b.x", "routing_key": "b.staged", "priority": "0", "task": "b.pay"}
    with StagingClient(f"opendata://a:x@127.0.0.1:{broker.port}/default") as client:
        target = client.staging_target()
        for job in ("inline", "object"):
            writer = BatchWriter(target, job, 0, 0)
            for _number in range(1 if job == "inline" else target.inline_rows + 1):
                writer.add(forged({"task": "a.task"}, "", "a.staged"), texts, routing_key="a.staged", created_at_ms=1)
            client.commit_job(job, [writer.close()])
        jobs = ("inline", "object")
        wait_until(lambda: all(client.job_status(job).state == "routed" for job in jobs), 60, "the jobs")
    assert got(b, "b.staged-filter") is None
    with QueueClient(f"opendata://a:x@127.0.0.1:{broker.port}/default") as reader:
        (message, *_more) = reader.list_messages(queues=["a.staged"], limit=1).items
    assert message.headers == {"exchange": "", "routing_key": "a.staged", "priority": "0", "task": "a.task"}


def test_a_job_in_a_queue_of_another_user_is_not_changed(a: RawClient, b: RawClient, broker: ServedBroker) -> None:
    declare(a, "a.half")
    declare(b, "b.half")
    with StagingClient(f"opendata://a:x@127.0.0.1:{broker.port}/default") as client:
        target = client.staging_target()
        for key in ("a.half", "b.half"):
            writer = BatchWriter(target, key, 0, 0)
            writer.add(forged({"task": "a.task"}, "", key), {"routing_key": key}, routing_key=key)
            client.commit_job(key, [writer.close()])
        for call in (client.cancel_job, client.retry_job):
            with pytest.raises(AccessRefused) as refusal:
                call("b.half")
            assert "b.half" not in str(refusal.value)
        assert client.job_status("b.half").tasks.waiting == 1
        assert client.cancel_job("a.half").dropped == 1
    with StagingClient(f"opendata://operator:x@127.0.0.1:{broker.port}/default") as client:
        assert client.cancel_job("b.half").dropped == 1


def test_a_message_names_no_other_user(a: RawClient) -> None:
    declare(a, "a.user")
    unreadable = msgspec.Raw(b"\x82" + b"".join(map(encode, ("user_id", "b", Ext(5, b"0" * 32), 1))))
    hidden = a.call(m.Publish(0, 9, "", "a.user", encode((b"", None, None, {}, unreadable, "", "a.user")), {}, 0, 1))
    assert getattr(hidden, "code", "") == "invalid_message"
    answers = [
        a.call(m.Publish(0, seq, "", "a.user", forged({}, "", "a.user", user_id=user), {}, 0, 1))
        for seq, user in enumerate(("b", "a"), 1)
    ]
    assert [getattr(answer, "code", "") for answer in answers] == ["invalid_message", ""]
    assert "the publisher is 'a'" in answers[0].text


# ---------------------------------------------------------------------- reports
@pytest.mark.parametrize("durable", [True, False], ids=["stored", "transient"])
def test_only_who_started_a_task_reports_it(a: RawClient, b: RawClient, broker: ServedBroker, durable: bool) -> None:
    queue, report = f"a.run-{durable}", TaskReport(int(TaskState.RAISED), 1000, 1, f"a.run-{durable}", "Boom")
    declare(a, queue, durable=durable)
    assert isinstance(a.call(m.Consume(0, 1, "keeps it", queue, False, False, {})), m.Ok)
    assert a.publish(queue, 1, forged({}, "", queue)).queues == 1
    _queue, id, token = a.wait_deliveries(1)[0].lease
    forgeries: list[m.Reported] = [(int(Outcome.REPORT), queue, id + number, token, report) for number in range(3)]
    for client in (a, b):  # nothing was started
        client.send(m.ReportTasks(1, forgeries))
        client.call(m.Ping(0))
    a.send(m.Settle(2, Outcome.START, 1, [(queue, id, token)]))
    a.call(m.Ping(0))
    b.send(m.ReportTasks(2, forgeries))  # another client, which may not read the queue
    b.call(m.Ping(0))
    a.send(m.ReportTasks(3, forgeries + forgeries))
    a.call(m.Ping(0))
    port, about = int(broker.report["metrics_port"]), {"task": queue, "state": "raised"}
    found = scrape_until(port, lambda scraped: queue in scraped.text)
    assert found.value("opendata_queue_task_runs_total", **about) == 1


# ---------------------------------------------------------------------- work
def test_the_filters_of_a_user_are_bounded_together(a: RawClient) -> None:
    """One message may reach all of them, as the queues can be bound to the same exchange."""
    costly = " OR ".join(["h LIKE '%a_a%'"] * 8)
    answers = [
        a.call(m.DeclareQueue(0, f"a.costly-{number}", False, False, False, given, False))
        for number in range(13)
        for given in [{"x-filter": costly, "x-filter-mode": "all"}]
    ]
    assert [type(answer) for answer in answers] == [m.QueueDeclared] * 12 + [m.Failed]
    assert (answers[-1].code, answers[-1].values["limit"]) == ("limit_exceeded", "filters")
    declare(a, "a.cheap", x_filter="h = 'a'", x_filter_mode="all")
    for number in range(12):
        a.call(m.DeleteQueue(0, f"a.costly-{number}", False, False))
    declare(a, "a.costly-12", x_filter=costly, x_filter_mode="all")
    a.call(m.DeleteQueue(0, "a.costly-12", False, False))


def test_a_batch_goes_through_filters_in_slices_and_is_stored_once(a: RawClient) -> None:
    declare(a, "a.batch")
    declare(a, "a.odd", x_filter="kind = 'odd'", x_filter_mode="all")
    assert isinstance(a.call(m.DeclareExchange(0, "a.fan", "fanout", True, False, {}, False)), m.Ok)
    for queue in ("a.batch", "a.odd"):
        assert isinstance(a.call(m.Bind(0, queue, "a.fan", "", {})), m.Ok)
    kinds = ["odd" if number % 2 else "even" for number in range(40)]
    messages: list[m.Outgoing] = [(forged({"kind": kind}, "a.fan", ""), {}, 0, 0, -1) for kind in kinds]
    send = m.Send(0, 1, "a.fan", "", messages, 1, key="once", key_ttl_ms=60_000, digest=b"d" * 16)
    sent, again = (
        a.call(send),
        a.call(m.Send(0, 2, "a.fan", "", messages, 1, key="once", key_ttl_ms=60_000, digest=b"d" * 16)),
    )
    assert isinstance(sent, m.Sent), sent
    assert sent.queues == [["a.batch", "a.odd"] if kind == "odd" else ["a.batch"] for kind in kinds]
    assert (again.ids, again.repeated) == (sent.ids, True)
    assert [a.call(m.DeclareQueue(0, queue, True, False, False, {}, True)).ready for queue in ("a.batch", "a.odd")] == [
        40, 20,
    ]  # fmt: skip


def test_a_batch_that_takes_long_to_check_stops_nobody_else(a: RawClient, b: RawClient) -> None:
    declare(a, "a.heavy")
    heavy = encode_envelope(b"", None, None, dict.fromkeys(map(str, range(1000))), {"user_id": "a"}, "", "a.heavy")
    bad = encode_envelope(b"", None, None, {}, {"user_id": "b"}, "", "a.heavy")  # it is checked last
    messages: list[m.Outgoing] = [(bad, {}, 0, 0, -1), *[(heavy, {}, 0, 0, -1)] * 3000]
    before = a.call(m.Ping(0))
    sent = a.send(m.Send(0, 1, "", "a.heavy", messages, 1))
    assert type(b.call(m.Ping(0))) is type(before)
    assert not select.select([a.sock], [], [], 0)[0], "the batch was checked before any other call"
    assert a.answer(sent).code == "invalid_message"


# ---------------------------------------------------------------------- names
def test_answers_name_only_queues_that_the_user_may_see(a: RawClient, b: RawClient) -> None:
    declare(a, "a.seen")
    declare(b, "b.hidden", x_filter="routing_key = 'a.seen'", x_max_length=1, x_overflow="reject-publish")
    envelope = forged({}, "", "a.seen")
    routes = a.call(m.AskRoutes(0, "", "a.seen", envelope, {}))
    assert (routes.queues, routes.hidden) == (["a.seen"], 1)
    sent = a.call(m.Send(0, 1, "", "a.seen", [(envelope, {}, 0, 0, -1)], 1))
    assert sent.queues == [["a.seen"]]
    refused = [
        a.call(m.Publish(0, 2, "", "a.seen", envelope, {}, 0, 1)),
        a.call(m.Send(0, 3, "", "a.seen", [(envelope, {}, 0, 0, -1)] * 2, 1)),
    ]
    for answer in refused:
        assert isinstance(answer, m.Failed)
        assert "b.hidden" not in f"{answer.text} {answer.values}"


def test_bindings_name_only_queues_that_the_user_may_see(a: RawClient, b: RawClient, broker: ServedBroker) -> None:
    """The other user may publish to the exchange."""
    with RawClient(broker.port) as admin:
        admin.hello(user="root", secret="x")
        assert isinstance(admin.call(m.DeclareExchange(0, "shared", "direct", True, False, {}, False)), m.Ok)
    declare(b, "b.bound")
    assert isinstance(b.call(m.Bind(0, "b.bound", "shared", "key", {})), m.Ok)
    shown = [[row[0] for row in client.call(m.ListBindings(0)).bindings] for client in (a, b)]
    assert ["b.bound" in names for names in shown] == [False, True]
