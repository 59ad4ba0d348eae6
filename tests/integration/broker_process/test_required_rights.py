"""The right that each call needs: without it the call is refused and changes nothing, with it the call works.

Each message of a client is here, over TCP with logins. A user is made for each case and each right that it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import encode_envelope
from kombu_opendata.protocol.messages.message_base import WireMessage
from kombu_opendata.protocol.revocation import PROPERTY
from kombu_opendata.protocol.task_reports import TaskReport

from ...support.processes import children
from ...support.raw import RawClient
from ...support.served import ServedBroker
from ...support.users import CHEAP, user_table, write_users

pytestmark = pytest.mark.contract(13)

RIGHTS = ("configure", "write", "read")
ROLES = ("monitor", "operator", "admin")
PLAIN = encode_envelope("{}", "application/json", "utf-8", {"id": "1"}, {}, "", "")
EXPIRING = encode_envelope("{}", "application/json", "utf-8", {"id": "1"}, {PROPERTY: ["r", "c", 1]}, "", "")
#: fields whose values are names of the case's own queues and exchanges: q, t (queues), x, d (exchanges)
NAMED = ("queue", "target", "exchange", "routing_key", "queues")


class Case(NamedTuple):
    """A call, the names on which it needs each right, and the role that does instead (or that it needs)."""

    name: str
    message: WireMessage
    needs: Mapping[str, tuple[str, ...]] = {}
    role: str = ""


def publish(exchange: str, key: str, envelope: bytes = PLAIN) -> m.Publish:
    return m.Publish(0, 1, exchange, key, envelope, {"id": "1"}, 0, 1)


def send(exchange: str, key: str, envelope: bytes = PLAIN) -> m.Send:
    return m.Send(0, 1, exchange, key, [(envelope, {}, 0, 0, -1)], 1)


def queue(name: str, **arguments: Any) -> m.DeclareQueue:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    return m.DeclareQueue(0, name, True, False, False, given, False)


def exchange(name: str, **arguments: Any) -> m.DeclareExchange:
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    return m.DeclareExchange(0, name, "direct", True, False, given, False)


Q_READ, Q_WRITE, Q_CONFIGURE = {"read": ("q",)}, {"write": ("q",)}, {"configure": ("q",)}
RESULT_WRITE, RESULT_READ = {"write": ("amq.results",)}, {"read": ("amq.results",)}
ALL_READ, STAGED = {"read": ("amq.all",)}, {"write": ("amq.staged",)}

CASES = [
    # ---- no right but the entry for the instance
    Case("heartbeat", m.Heartbeat()),
    Case("ping", m.Ping(0)),
    Case("goodbye", m.Goodbye(0)),
    Case("cancel", m.Cancel(0, 1, "none")),
    Case("qos", m.Qos(0, 1, 10)),
    Case("credit", m.Credit(1, 10)),
    Case("settle", m.Settle(1, 0, 1, [("q", 0, 0)])),
    Case("report tasks", m.ReportTasks(1, [(0, "q", 0, 0, TaskReport(1))])),
    Case("close", m.CloseChannel(0, 1)),
    Case("stop-reading", m.StopReading(1)),
    Case("list-queues", m.ListQueues(0)),
    Case("list-bindings", m.ListBindings(0)),
    Case("whoami", m.WhoAmI(0)),
    Case("list-instances", m.ListInstances(0)),
    Case("unwatch", m.UnwatchResults(0, [b"r"])),
    Case("metrics-of-all", m.GetMetrics(0, [])),
    Case("recent-metrics-of-all", m.GetRecentMetrics(0, [])),
    Case("due-of-all", m.CountDue(0, [], 60_000, 10)),
    Case("periodic", m.ListPeriodicTasks(0)),
    Case("cursors-of-all", m.Cursors(0)),
    Case("message", m.RetrieveMessage(0, 0)),
    Case("attempt", m.RetrieveAttempt(0, "attempt-0")),
    Case("get-message", m.GetMessage(0, 0)),
    Case("passive-queue", m.DeclareQueue(0, "q", True, False, False, {}, True)),
    Case("passive-exchange", m.DeclareExchange(0, "x", "direct", True, False, {}, True)),
    # ---- publishing
    Case("publish", publish("x", "k"), {"write": ("x",)}),
    Case("publish-to-queue", publish("", "q"), Q_WRITE),
    Case("publish-default", publish("", "q"), {"write": ("amq.default",)}),
    Case("publish-revocable", publish("x", "k", EXPIRING), {"write": ("x", "amq.results")}),
    Case("send", send("x", "k"), {"write": ("x",)}),
    Case("send-to-queue", send("", "q"), Q_WRITE),
    Case("send-revocable", send("x", "k", EXPIRING), {"write": ("x", "amq.results")}),
    Case("ask-routes", m.AskRoutes(0, "x", "k", PLAIN, {}), {"write": ("x",)}, "monitor"),
    # ---- consuming
    Case("consume", m.Consume(0, 1, "tag", "q", False, False, {}), Q_READ),
    Case("get", m.Get(0, 1, "q", False), Q_READ),
    Case("read", m.Read(0, "q", 1, 1000), Q_READ),
    Case("peek", m.Peek(0, "q", -1, 10), Q_READ, "monitor"),
    Case("list-by-state", m.ListByState(0, "q", "available", -1, 10), Q_READ, "monitor"),
    Case("get-message-in-queue", m.GetMessage(0, 0, "q"), Q_READ, "monitor"),
    Case("metrics", m.GetMetrics(0, ["q"]), Q_READ, "monitor"),
    Case("recent-metrics", m.GetRecentMetrics(0, ["q"]), Q_READ, "monitor"),
    Case("due", m.CountDue(0, ["q"], 60_000, 10), Q_READ, "monitor"),
    Case("settle-messages", m.SettleMessages(0, "q", 0, [(1 << 40, 0)]), Q_READ, "operator"),
    Case("purge", m.PurgeQueue(0, "q"), Q_READ, "operator"),
    Case("alter", m.AlterQueue(0, "q", {"x-max-length": 1000}, []), Q_CONFIGURE, "operator"),
    Case(
        "alter-dead-letters",
        m.AlterQueue(0, "q", {"x-dead-letter-exchange": "d"}, []),
        {"configure": ("q",), "read": ("q",), "write": ("d",)},
    ),
    Case(
        "alter-filter",
        m.AlterQueue(0, "q", {"x-filter": "task = 'a'"}, []),
        {"configure": ("q",), "read": ("amq.all",)},
    ),
    Case("list-partitions", m.ListPartitions(0, "q"), Q_READ, "operator"),
    Case("delay-key", m.DelayKey(0, "q", 0), Q_READ, "operator"),
    Case("pause", m.PauseQueue(0, "q"), Q_CONFIGURE, "operator"),
    Case("resume", m.ResumeQueue(0, "q"), Q_CONFIGURE, "operator"),
    # ---- definitions
    Case("declare", queue("q"), Q_CONFIGURE),
    Case("declare-new", queue("new"), {"configure": ("new",)}),
    Case("declare-unnamed", m.DeclareQueue(0, "", False, True, True, {}, False), {"configure": ("amq.gen-.*",)}),
    Case(
        "declare-dead-letters",
        queue("new", x_dead_letter_exchange="d"),
        {"configure": ("new",), "read": ("new",), "write": ("d",)},
    ),
    Case(
        "declare-dead-letters-to-queue",
        queue("new", x_dead_letter_exchange="", x_dead_letter_routing_key="q"),
        {"configure": ("new",), "read": ("new",), "write": ("q",)},
    ),
    Case(
        "declare-dead-letters-to-any-queue",
        queue("new", x_dead_letter_exchange=""),
        {"configure": ("new",), "read": ("new",), "write": ("amq.default",)},
    ),
    Case("declare-filter", queue("new", x_filter="task = 'a'"), {"configure": ("new",), "read": ("amq.all",)}),
    Case(
        "declare-narrowing-filter",
        m.DeclareQueue(0, "new", True, False, False, {"x-filter": "task = 'a'", "x-filter-mode": "all"}, False),
        {"configure": ("new",)},
    ),
    Case("declare-past", queue("new", x_start="first"), {"configure": ("new",)}),
    Case("delete", m.DeleteQueue(0, "q", False, False), Q_CONFIGURE),
    Case("delete-missing", m.DeleteQueue(0, "none", False, False), {"configure": ("none",)}),
    Case("declare-exchange", exchange("x"), {"configure": ("x",)}),
    Case(
        "declare-alternate",
        m.DeclareExchange(0, "new", "direct", True, False, {"alternate-exchange": "d"}, False),
        {"configure": ("new",), "read": ("new",), "write": ("d",)},
    ),
    Case("delete-exchange", m.DeleteExchange(0, "x", False), {"configure": ("x",)}),
    Case("bind", m.Bind(0, "q", "x", "another", {}), {"write": ("q",), "read": ("x",)}),
    Case("unbind", m.Unbind(0, "q", "x", "k", {}), {"write": ("q",), "read": ("x",)}),
    # ---- what was published before
    Case("replay", m.Replay(0, "q", "now"), {"configure": ("q",), "read": ("q",)}, "operator"),
    Case(
        "replay-by-header",
        m.Replay(0, "q", "now", selector="token = 'a'"),
        {"configure": ("q",), "read": ("q",)},
    ),
    Case("cursors", m.Cursors(0, ["q"]), Q_READ, "monitor"),
    Case("redrive", m.Redrive(0, "q"), {"read": ("q",), "write": ("q",)}, "operator"),
    Case("redrive-by-header", m.Redrive(0, "q", selector="token = 'a'"), {"read": ("q",), "write": ("q",)}),
    Case("redrive-elsewhere", m.Redrive(0, "q", "t"), {"read": ("q",), "write": ("t",)}),
    Case("move", m.MoveMessages(0, "q", "t"), {"read": ("q",), "write": ("t",)}),
    Case("copy", m.MoveMessages(0, "q", "t", copy=True), {"read": ("q",), "write": ("t",)}),
    Case("delete-settled", m.DeleteSettled(0, "q", "failed", all=True), Q_CONFIGURE, "operator"),
    Case("archive-failed", m.ArchiveFailed(0, "q"), Q_CONFIGURE, "operator"),
    Case(
        "archive-by-header",
        m.ArchiveFailed(0, "q", selector="token = 'a'"),
        {"configure": ("q",), "read": ("q",)},
    ),
    Case("failures", m.ListFailures(0, queues=["q"]), Q_READ, "monitor"),
    Case("failures-of-all", m.ListFailures(0), ALL_READ, "monitor"),
    Case("failures-tracebacks", m.ListFailures(0, queues=["q"], tracebacks=True), Q_READ),
    Case("failures-by-header", m.ListFailures(0, queues=["q"], selector="token = 'a'"), Q_READ),
    Case("group-failures", m.GroupFailures(0, queues=["q"], by=["task"]), Q_READ, "monitor"),
    Case("retry", m.RetryFailures(0, queues=["q"]), {"read": ("q",), "write": ("q",)}, "operator"),
    Case("retry-elsewhere", m.RetryFailures(0, queues=["q"], target="t"), {"read": ("q",), "write": ("t",)}),
    Case(
        "retry-by-header",
        m.RetryFailures(0, queues=["q"], selector="token = 'a'"),
        {"read": ("q",), "write": ("q",)},
    ),
    Case("retry-of-all", m.RetryFailures(0), role="operator"),
    Case("dismiss", m.DeleteFailures(0, queues=["q"]), Q_CONFIGURE, "operator"),
    Case(
        "dismiss-by-header",
        m.DeleteFailures(0, queues=["q"], selector="token = 'a'"),
        {"configure": ("q",), "read": ("q",)},
    ),
    Case("dismiss-of-all", m.DeleteFailures(0), role="operator"),
    Case("messages", m.ListMessages(0, queues=["q"]), Q_READ, "monitor"),
    Case("messages-of-all", m.ListMessages(0), ALL_READ, "monitor"),
    Case("messages-of-two", m.ListMessages(0, queues=["q", "t"]), {"read": ("q", "t")}, "monitor"),
    Case("messages-by-task", m.ListMessages(0, queues=["q"], headers={"task": ["a"]}), Q_READ, "monitor"),
    Case("messages-by-header", m.ListMessages(0, queues=["q"], headers={"token": ["a"]}), Q_READ),
    Case("attempts", m.ListAttempts(0, queues=["q"]), Q_READ, "monitor"),
    Case("attempts-bodies", m.ListAttempts(0, queues=["q"], bodies=True), Q_READ),
    Case("attempts-by-header", m.ListAttempts(0, headers={"token": ["a"]}), ALL_READ),
    Case("count-messages", m.CountMessages(0, gte=0, lt=1000, bucket_ms=1000, queues=["q"]), Q_READ, "monitor"),
    Case("count-attempts", m.CountAttempts(0, gte=0, lt=1000, bucket_ms=1000), ALL_READ, "monitor"),
    Case("explain", m.Explain(0, "q", headers={"task": "a"}), Q_READ, "monitor"),
    Case("explain-filter", m.Explain(0, filter="task = 'a'", headers={"task": "a"}), ALL_READ, "monitor"),
    Case("explain-message", m.Explain(0, "q", 0), {"read": ("q", "amq.topic")}),
    Case("explain-filter-message", m.Explain(0, "", 0, filter="task = 'a'"), ALL_READ),
    # ---- staged jobs
    Case("staging-target", m.GetStagingTarget(0), STAGED),
    Case("commit-job", m.CommitJob(0, "job", []), STAGED),
    Case("abort-job", m.AbortJob(0, "gone", []), STAGED),
    Case("job", m.GetJob(0, "job"), STAGED, "monitor"),
    Case("jobs", m.ListJobs(0), STAGED, "monitor"),
    Case("cancel-job", m.CancelJob(0, "ended"), STAGED, "operator"),
    Case("retry-job", m.RetryJob(0, "ended"), STAGED, "operator"),
    Case("delete-job", m.DeleteJob(0, "ended"), STAGED, "operator"),
    # ---- results
    Case("store-result", m.StoreResult(0, b"r", 1, b"1", 0), RESULT_WRITE),
    Case("results", m.GetResults(0, [b"r"]), RESULT_READ),
    Case("watch", m.WatchResults(0, [b"r"]), RESULT_READ),
    Case("forget", m.ForgetResults(0, [b"r"]), RESULT_WRITE),
    Case("open-chord", m.OpenChord(0, b"c", 0), RESULT_WRITE),
    Case("chord", m.GetChord(0, b"c"), RESULT_READ),
    Case("close-chord", m.CloseChord(0, b"c"), RESULT_WRITE),
    # ---- roles
    Case("status", m.GetStatus(0), role="monitor"),
    Case("workers", m.ListWorkers(0), role="monitor"),
    Case("worker-messages", m.WorkerMessages(0, b"w" * 16, 10), role="monitor"),
    Case("control-worker", m.ControlWorker(0, b"w" * 16, "release"), role="operator"),
    Case("reclaim", m.Reclaim(0), role="operator"),
    Case("maintain", m.Maintain(0, ["expire_leases"]), role="operator"),
    Case("hand-over", m.HandOver(0), role="admin"),
    Case("reload", m.Reload(0), role="admin"),
    Case("create-instance", m.CreateInstance(0, "created"), role="admin"),
]


def named(case: Case, name: str) -> str:
    """The name of this case's own queue or exchange."""
    return name if name.startswith("amq.") or not name else f"{case.name}.{name}"


def said_name(case: Case, right: str, name: str) -> str:
    """What a refusal says is missing: of a publish to the default exchange, the right on the queue.

    Where a stored message was sent is not told.
    """
    if case.name == "explain-message" and name != "q":
        return "amq.all"
    return right if right in ROLES else named(case, "q" if case.name == "publish-default" else name)


def message_of(case: Case) -> Any:
    """The message, with this case's own names."""
    message = type(case.message)(**{field: getattr(case.message, field) for field in case.message.__struct_fields__})
    for field in NAMED:
        value = getattr(message, field, None)
        if isinstance(value, str):
            setattr(message, field, named(case, value))
        elif value is not None:
            setattr(message, field, [named(case, each) for each in value])
    arguments = getattr(message, "arguments", None)
    if arguments:
        names = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "alternate-exchange")
        message.arguments = {k: named(case, v) if k in names else v for k, v in arguments.items()}  # type: ignore[attr-defined]
    return message


def lacking(case: Case) -> list[tuple[str, str]]:
    """The rights of a case, each with one name."""
    return [(right, name) for right, names in case.needs.items() for name in names]


def patterns(case: Case, without: tuple[str, str] | None = None) -> dict[str, str]:
    """Just the rights that a case needs, or without one of them."""
    found = {}
    for right in RIGHTS:
        names = [name for name in case.needs.get(right, ()) if (right, name) != without]
        texts = [name if name.endswith("*") else re.escape(named(case, name)) for name in names]
        found[right] = f"^({'|'.join(texts)})$" if texts else ""
    return found


def tables() -> Iterator[str]:
    """All users, with the same secret and therefore the same hash."""
    hashed = CHEAP.hash("x")

    def table(name: str, rights: Mapping[str, str], *roles: str) -> str:
        return user_table(f"'{name}'", instances={"default": rights}, hashed=hashed, roles=roles)

    none = dict.fromkeys(RIGHTS, "")
    for role in ROLES:
        yield table(role, none, role)
    yield table("nobody", none)
    for case in CASES:
        yield table(case.name, patterns(case))
        for number, without in enumerate(lacking(case)):
            yield table(f"{case.name}-{number}", patterns(case, without))


@pytest.fixture(scope="module")
def port(module_store_folder: Path) -> Iterator[int]:
    folder = module_store_folder
    users = write_users(folder / "users", *tables())
    with children() as started:
        options = ("--store", f"file://{folder}/store", "--listen", "tcp:127.0.0.1:0", "--users", str(users))
        broker = ServedBroker(folder, *options, "--no-sync")
        started.add(broker)
        with RawClient(broker.port) as admin:  # message 0, which a case reads
            admin.hello(user="admin", secret="x")
            admin.declare("first")
            assert isinstance(admin.call(m.Bind(0, "first", "amq.topic", "k", {})), m.Ok)
            assert admin.call(publish("amq.topic", "k")).message_id == 0
        commit_job(broker.port)
        yield broker.port
        assert broker.terminate() == 0


def answer(port: int, user: str, message: Any) -> Any:
    """What the broker answers this user; for a message without an answer, what it answers to a Ping after it."""
    with RawClient(port) as client:
        client.hello(user=user, secret="x")
        if hasattr(message, "rid"):
            return client.call(message)
        client.send(message)
        return client.call(m.Ping(0))


def commit_job(port: int) -> None:
    """A job without messages."""
    with RawClient(port) as admin:
        admin.hello(user="admin", secret="x")
        assert isinstance(admin.call(m.CommitJob(0, "ended", [])), m.JobReport)


def prepare(port: int, case: Case) -> None:
    """Queues q and t, exchanges x and d, and in q a failed and a waiting message."""
    q, t, x, d = (named(case, name) for name in "qtxd")
    with RawClient(port) as admin:
        admin.hello(user="admin", secret="x")
        for name in (q, t):
            admin.declare(name)
        for name in (x, d):
            assert isinstance(admin.call(exchange(name)), m.Ok)
        assert isinstance(admin.call(m.Bind(0, q, x, "k", {})), m.Ok)
        assert isinstance(admin.call(m.Bind(0, q, x, named(case, "k"), {})), m.Ok)
        admin.publish(q, 1, PLAIN)
        admin.publish(q, 2, PLAIN)
        got = admin.call(m.Get(0, 1, q, False)).delivery
        admin.send(m.Settle(1, m.Outcome.REJECT, 1, [(q, got.id, got.token)]))
        assert isinstance(admin.call(m.Goodbye(0)), m.Ok)


def world(port: int, case: Case) -> Any:
    """What a call could change; leases and replays of other cases end meanwhile."""
    with RawClient(port) as admin:
        admin.hello(user="admin", secret="x")
        bindings = admin.call(m.ListBindings(0))
        figures = ("length", "in_flight", "consumers", "done", "failed", "archived_failed")
        metrics = admin.call(m.GetMetrics(0, [])).queues
        own = sorted(name for name in metrics if name.startswith(f"{case.name}."))
        queues = sorted(row[0] for row in admin.call(m.ListQueues(0)).queues)
        return (
            [name for name in queues if not name.startswith("amq.gen")],
            sorted(bindings.bindings),
            sorted(row[0] for row in bindings.exchanges),
            [(name, [metrics[name].get(figure) for figure in figures]) for name in own],
            admin.call(m.ListInstances(0)).instances,
            [job.job_id for job in admin.call(m.ListJobs(0)).jobs],
            admin.call(m.GetResults(0, [b"r"])).values,
            [(cursor["queue"], cursor["start"], cursor["selector"]) for cursor in admin.call(m.Cursors(0)).cursors],
        )


def test_each_message_of_a_client_is_here() -> None:
    assert {type(case.message) for case in CASES} == set(m.OPERATIONS)
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_call_without_its_right_is_refused_and_changes_nothing(port: int, case: Case) -> None:
    prepare(port, case)
    refusals = []
    before = world(port, case)
    for number, (right, name) in enumerate(lacking(case)):
        refusals.append((f"{case.name}-{number}", right, name))
    if case.role and not case.needs:
        refusals.append(("nobody", case.role, case.role))
    if case.role:
        refusals += [(lower, "", "") for lower in ROLES[: ROLES.index(case.role)]]
    elif case.needs:
        refusals.append(("operator", "", ""))
    for user, right, name in refusals:
        said = answer(port, user, message_of(case))
        assert isinstance(said, m.Failed), (user, said)
        assert said.code == "access_refused", said
        assert (said.values["user"], said.values["instance"]) == (user, "default")
        if right:
            assert said.values["right"] == right
            assert re.fullmatch(said_name(case, right, name), said.values["name"])
    assert world(port, case) == before
    roles = ROLES[ROLES.index(case.role) :] if case.role else ("admin",)
    for user in (case.name, *roles) if case.needs or not case.role else roles:
        if case.name == "delete-job":
            commit_job(port)  # the user before has deleted it
        said = answer(port, user, message_of(case))
        if case.name == "hand-over":
            assert said.code == "precondition_failed", "there is no standby"
        else:
            assert not isinstance(said, m.Failed), (user, said)
