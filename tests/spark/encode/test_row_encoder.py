"""What a row becomes is what ``apply_async`` of the same task publishes: envelopes compared part by part."""

from __future__ import annotations

import copy
import datetime as dt
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from celery import Celery, signals
from kombu.entity import Exchange, Queue

from kombu_opendata.celery_integration.unique_tasks import Unique
from kombu_opendata.client.session.session_io import SessionIO
from kombu_opendata.errors import InvalidMessage, RequestError
from kombu_opendata.protocol.envelope import broker_headers
from kombu_opendata.protocol.messages import Publish, PublishConfirm
from kombu_opendata.protocol.unique_key import HEADER
from kombu_opendata.spark.encode.plan import ColumnNames, JobPlan
from kombu_opendata.spark.encode.row_encoder import RowEncoder
from kombu_opendata.url import parse

TASK = "proj.add"
#: that differ for certain
OWN = ("id", "root_id", "correlation_id")


class Published:
    """What an app publishes, as requests to the broker that it does not send."""

    def __init__(self, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app = app
        self._requests: list[Publish] = []

        def note(_io: SessionIO, request: Publish, timeout: float | None = None) -> PublishConfirm:
            self._requests.append(request)
            return PublishConfirm(0, 0, 1)

        monkeypatch.setattr(SessionIO, "publish", note)

    def by_celery(self, args: tuple[Any, ...], kwargs: dict[str, Any], task: str = TASK, **options: Any) -> Publish:
        self._requests.clear()
        self.app.tasks[task].apply_async(args, kwargs, **options)
        (request,) = self._requests
        return request


@pytest.fixture
def app() -> Iterator[Any]:
    made = Celery("spark-tests", broker="opendata+memory://spark-messages", set_as_current=False)

    @made.task(shared=False, name=TASK)
    def add(*args: object, **kwargs: object) -> None: ...

    @made.task(shared=False, name="proj.other", serializer="msgspec", ignore_result=True, time_limit=9)
    def other(*args: object, **kwargs: object) -> None: ...

    @made.task(shared=False, name="proj.strict")
    def strict(x: int, *, y: int) -> None: ...

    yield made
    made.close()


@pytest.fixture
def published(app: Any, monkeypatch: pytest.MonkeyPatch) -> Published:
    return Published(app, monkeypatch)


def encoded(
    app: Any, columns: ColumnNames, table: pa.Table, task: str = TASK, queue: str = "", **options: Any
) -> list[Any]:
    """(envelope, metadata headers and the other columns) of each row."""
    plan = JobPlan(columns, task=task if columns.task is None else "", queue=queue, options=options)
    plan.check_columns(table.schema, {})
    for name in {task} if columns.task is None else set(table.column(columns.task).to_pylist()):
        plan.template((name, queue), app)
    encoder = RowEncoder(plan, "job", 0, lambda: time.time_ns() // 1_000_000)
    rows = []
    for batch in table.to_batches():
        for messages in encoder.encode(batch):
            for at, envelope in enumerate(messages.envelopes):
                pick = lambda value, at=at: value[at] if isinstance(value, list) else value  # noqa: E731
                rows.append(
                    (envelope, {k: pick(v) for k, v in messages.headers.items()}, *map(pick, messages.fields.values()))
                )
    return rows


def assert_same(row: Any, request: Publish) -> None:
    """The row's envelope, byte for byte once the ids are the same and without the job; and what travels beside it."""
    envelope, headers, exchange, routing_key, priority, visible_at_ms, _ttl = row
    mine, theirs = msgspec.msgpack.decode(envelope), msgspec.msgpack.decode(request.envelope)
    assert (mine[3].pop("spark_job"), headers.pop("spark_job")) == ("job", "job")
    for values in (*mine[3:5], *theirs[3:5]):
        values.update((name, "same") for name in OWN if len(values.get(name, "")) == 36)
    assert msgspec.msgpack.encode(mine) == msgspec.msgpack.encode(theirs)
    seen = {name: text for name, text in headers.items() if text is not None}
    stored, _envelope = broker_headers(
        request.envelope, request.exchange, request.routing_key, request.priority, lambda *_names: True
    )
    for values in (seen, stored):
        values.update((name, "same") for name in OWN if len(values.get(name, "")) == 36)
    assert seen == stored
    assert (exchange, routing_key, priority) == (request.exchange, request.routing_key, request.priority)
    assert visible_at_ms == request.visible_at_ms


VALUES: dict[str, pa.Array] = {
    "long": pa.array([1, -(2**63), None], pa.int64()),
    "byte": pa.array([1, -128, None], pa.int8()),
    "double": pa.array([0.1, 1e300, None]),
    "wild": pa.array([float("inf"), float("-inf"), float("nan")]),
    "float": pa.array([0.5, 0.1, None], pa.float32()),
    "bool": pa.array([True, False, None]),
    "text": pa.array(["plain", 'it\'s "é" \\ 100% \n\x7f\U0001f600', None]),
    "plain": pa.array(["plain", "", None]),
    "bytes": pa.array([b"text", b"\xff\x00", None]),
    "decimal": pa.array([Decimal("1.50"), Decimal("-99.99"), None], pa.decimal128(10, 2)),
    "date": pa.array([dt.date(2026, 1, 2), dt.date(1, 1, 1), None]),
    "time": pa.array([0, 1_700_000_000_123_456, None], pa.timestamp("us", "Europe/Berlin")),
    "ntz": pa.array([0, 1_700_000_000_000_000, None], pa.timestamp("us")),
    "list": pa.array([[1, None], [], None], pa.list_(pa.int64())),
    "map": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"x": 1, "y": {"z": [b"b"]}}, {"x": None, "y": None}, None]),
    "times": pa.array([[dt.datetime(2026, 1, 2, tzinfo=dt.UTC)], [None], None], pa.list_(pa.timestamp("us", "UTC"))),
    "nothing": pa.nulls(3),
    "long text": pa.array(["x" * 1019, "x" * 1020, "x" * 5000]),
    "deep": pa.array([[[[[1]]]], None, [[[[2]], []]]]),
}


@pytest.mark.parametrize(
    ("name", "serializer"),
    [
        (name, serializer)
        for name in VALUES
        for serializer in ("json", "msgspec", "pickle", "yaml")
        if serializer != "yaml" or name not in ("decimal", "struct")  # it has no form for them
    ],
)
def test_each_type_in_each_place(app: Any, published: Published, name: str, serializer: str) -> None:
    from kombu_opendata.spark.encode.argument_columns import values

    array = VALUES[name]
    table = pa.table({"a": array, "k": array})
    rows = encoded(app, ColumnNames(args=("a",), kwargs={"100% 'k' é": "k"}), table, serializer=serializer)

    for row, value in zip(rows, values(array), strict=True):
        again = copy.deepcopy(value)  # pickle and yaml say so where it is one object
        request = published.by_celery((value,), {"100% 'k' é": again}, serializer=serializer)
        if serializer == "pickle":
            mine, theirs = msgspec.msgpack.decode(row[0]), msgspec.msgpack.decode(request.envelope)
            assert mine[3]["argsrepr"] == theirs[3]["argsrepr"]
            assert mine[1:3] == theirs[1:3]
            continue
        assert_same(row, request)


CONSTANTS: list[Any] = [
    None, 5, 2**70, True, "é 'x' \"", [1, 2.5], [True, 1], [1, "a"], (1, ()), {"a": {"b": [None]}}, {},
    dt.datetime(2020, 1, 1), uuid.UUID(int=5), Decimal("1.50"), "x" * 3000, [[[[[[1]]]]]], float("inf"),
]  # fmt: skip


@pytest.mark.parametrize("serializer", ["json", "msgspec", "pickle", "yaml"])
def test_constants_are_sent_as_apply_async_sends_them(app: Any, published: Published, serializer: str) -> None:
    table = pa.table({"a": [1, None]})
    sent = 0
    for value in CONSTANTS:
        columns = ColumnNames(("c", "a", "c"), {"k": "a", "c": "c"}, constants={"c": value})
        try:
            requests = [
                published.by_celery((value, number, value), {"k": number, "c": value}, serializer=serializer)
                for number in (1, None)
            ]
        except Exception:
            with pytest.raises(RequestError, match=r"^c can't be an argument"):
                encoded(app, columns, table, serializer=serializer)
            continue
        for row, request in zip(encoded(app, columns, table, serializer=serializer), requests, strict=True):
            assert_same(row, request)
            sent += 1
    assert sent >= 2 * (len(CONSTANTS) - 5)
    (row,) = encoded(app, ColumnNames(("c",), constants={"c": [5]}), table[:1], serializer=serializer)
    assert_same(row, published.by_celery(([5],), {}, serializer=serializer))


def test_no_arguments_and_several(app: Any, published: Published) -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"], "c": [None, 1.5]})
    cases: list[tuple[ColumnNames, list[tuple[tuple[Any, ...], dict[str, Any]]]]] = [
        (ColumnNames(), [((), {}), ((), {})]),
        (ColumnNames(args=("a", "b")), [((1, "x"), {}), ((2, "y"), {})]),
        (ColumnNames(kwargs={"q": "c", "a": "a"}), [((), {"q": None, "a": 1}), ((), {"q": 1.5, "a": 2})]),
        (ColumnNames(args=("b",), kwargs={"z": "a"}), [(("x",), {"z": 1}), (("y",), {"z": 2})]),
    ]
    for columns, given in cases:
        for row, (args, kwargs) in zip(encoded(app, columns, table), given, strict=True):
            assert_same(row, published.by_celery(args, kwargs))


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 7},
        {"queue": "other"},
        {"exchange": "news", "routing_key": "a.b"},
        {"compression": "zlib"},
        {"compression": "bzip2", "serializer": "pickle"},
        {"headers": {"tenant": "a", "n": 1, "deep": {"x": [1]}}},
        {"headers": {"price": Decimal("1.50"), "due": dt.datetime(2026, 1, 2), "deep": {"x": [dt.date(2026, 1, 2)]}}},
        {"time_limit": 30, "soft_time_limit": 20, "ignore_result": True, "shadow": "shown"},
        {"eta": dt.datetime(2040, 1, 2, 3, 4, 5, 678_901, tzinfo=dt.UTC)},
        {"delivery_mode": 1},
        {"argsrepr": "('***',)", "kwargsrepr": "{'pw': '***'}"},
        {"headers": {"argsrepr": "hidden", "kwargsrepr": None, "eta": "2040-01-02T03:04:05.678901", "priority": "77"}},
        {"reply_to": "somewhere", "group_id": "g", "group_index": 2, "root_id": "r", "parent_id": "p"},
    ],
    ids=str,
)
def test_options_of_apply_async(app: Any, published: Published, options: dict[str, Any]) -> None:
    rows = encoded(app, ColumnNames(args=("a",)), pa.table({"a": [1, 2]}), **options)

    for row, value in zip(rows, (1, 2), strict=True):
        assert_same(row, published.by_celery((value,), {}, **options))


def test_countdown_and_expires_count_from_the_submission(app: Any, published: Published) -> None:
    (row,) = encoded(app, ColumnNames(), pa.table({"a": [1]}), countdown=60, expires=120)
    request = published.by_celery((), {}, countdown=60, expires=120)

    mine, theirs = msgspec.msgpack.decode(row[0]), msgspec.msgpack.decode(request.envelope)
    for name in ("eta", "expires"):
        ours, celerys = dt.datetime.fromisoformat(mine[3][name]), dt.datetime.fromisoformat(theirs[3][name])
        assert abs(ours - celerys) < dt.timedelta(seconds=30)
    assert mine[4]["expiration"] == theirs[4]["expiration"] == "120000"
    assert row[6] == request.ttl_ms == 120_000
    assert abs(row[5] - request.visible_at_ms) < 30_000


def test_columns_of_options(app: Any, published: Published) -> None:
    at = [dt.datetime(2040, 1, 2, 3, 4, 5, 678_901, tzinfo=dt.UTC), None, dt.datetime(2041, 1, 1, tzinfo=dt.UTC)]
    table = pa.table(
        {
            "priority": pa.array([9, None, 0], pa.int8()),
            "eta": pa.array(at, pa.timestamp("us", "Asia/Tokyo")),
            "tenant": ["a", None, "c"],
            "size": [1, 2, None],
            "tags": pa.array([["x"], None, []], pa.list_(pa.string())),
            "price": pa.array([Decimal("1.50"), None, Decimal(2)], pa.decimal128(9, 2)),
            "due": pa.array([dt.datetime(2026, 1, 2, 3), None, None], pa.timestamp("us")),
        }
    )
    headers = {name: name for name in ("tenant", "size", "tags", "price", "due")}
    columns = ColumnNames(priority="priority", eta="eta", headers=headers)
    rows = encoded(app, columns, table, priority=4, headers={"fixed": "f"})

    for number, row in enumerate(table.to_pylist()):
        request = published.by_celery(
            (),
            {},
            priority=4 if row["priority"] is None else row["priority"],
            eta=at[number],
            headers={"fixed": "f", **{name: row[name] for name in headers}},
        )
        assert_same(rows[number], request)


def test_columns_of_headers_that_mean_something_to_celery_or_the_broker(app: Any, published: Published) -> None:
    values: dict[str, list[Any]] = {
        "argsrepr": ["hidden", None],
        "kwargsrepr": [None, "{'pw': '***'}"],
        "eta": ["2040-01-02T03:04:05.678901", None],
        "expires": ["2041-01-01T00:00:00+00:00", None],
        "priority": ["77", None],
        "exchange": ["EX", "EX"],
        "routing_key": ["zz", None],
        "content_type": [None, "text/plain"],
        "id": ["mine", "yours"],
    }
    columns = ColumnNames(args=("priority",), headers={name: name for name in values})
    rows = encoded(app, columns, pa.table(values), priority=2)

    for number, row in enumerate(rows):
        headers = {name: column[number] for name, column in values.items()}
        request = published.by_celery((headers["priority"],), {}, priority=2, headers=headers)
        assert_same(row, request)
        assert row[6] == request.ttl_ms


def test_a_header_column_eta_that_is_no_time_names_its_row(app: Any) -> None:
    with pytest.raises(InvalidMessage, match="column 'eta' is 'soon': the eta header 'soon' is not an ISO"):
        encoded(app, ColumnNames(headers={"eta": "eta"}), pa.table({"eta": [None, "soon"]}))


def test_reprs_that_a_receiver_hides_stay_hidden(
    app: Any, published: Published, request: pytest.FixtureRequest
) -> None:
    def before(headers: dict[str, Any], **_: Any) -> None:
        headers["kwargsrepr"] = "{…}"

    signals.before_task_publish.connect(before, weak=False)
    request.addfinalizer(lambda: signals.before_task_publish.disconnect(before))
    rows = encoded(app, ColumnNames(args=("a",), kwargs={"pw": "pw"}), pa.table({"a": [1, 2], "pw": ["x", "y"]}))

    for row, number, secret in zip(rows, (1, 2), "xy", strict=True):
        assert_same(row, published.by_celery((number,), {"pw": secret}))


def test_an_expires_that_is_a_time_leaves_less_and_less(app: Any) -> None:
    def left(**options: Any) -> list[str]:
        plan = JobPlan(ColumnNames(), task=TASK, options=options)
        made = plan.template((TASK, ""), app)
        later = [plan.at(made.made_at_ms + ms).templates[TASK, ""] for ms in (0, 20_000, 200_000)]
        return [each.properties["expiration"] for each in later]

    first, second, third = left(expires=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=100))
    assert 0 < int(first) <= 100_000
    assert int(second) == max(0, int(first) - 20_000)
    assert third == "0"
    assert left(expires=100) == ["100000"] * 3
    assert left(expires=100, headers={"expires": "2040-01-01T00:00:00+00:00"}) == ["100000"] * 3


def test_a_column_of_expires(app: Any, published: Published) -> None:
    at = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    past = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    table = pa.table({"e": pa.array([at, None, past], pa.timestamp("us", "UTC"))})
    hour, never, over = encoded(app, ColumnNames(expires="e"), table, expires=dt.datetime(2100, 1, 1, tzinfo=dt.UTC))

    assert_same(never, published.by_celery((), {}))
    assert never[6] == -1
    request = published.by_celery((), {}, expires=at)
    mine, theirs = msgspec.msgpack.decode(hour[0]), msgspec.msgpack.decode(request.envelope)
    assert mine[3]["expires"] == theirs[3]["expires"] == at.isoformat()
    assert list(mine[4]) == list(theirs[4])
    assert abs(int(mine[4]["expiration"]) - int(theirs[4]["expiration"])) < 30_000
    assert hour[6] == int(mine[4]["expiration"])
    assert over[6] == 0


def test_the_apps_routes_and_the_tasks_own_options_count(app: Any, published: Published) -> None:
    app.conf.task_queues = [
        Queue("celery"),
        Queue("billing", Exchange("money", "topic"), routing_key="bill.#", queue_arguments={"x-max-priority": 5}),
    ]
    app.conf.task_routes = {TASK: {"queue": "billing", "routing_key": "bill.new"}}
    tasks = [TASK, "proj.other", TASK]
    rows = encoded(app, ColumnNames(task="t", args=("a",)), pa.table({"t": tasks, "a": [1, 2, 3]}))

    for row, task, value in zip(rows, tasks, (1, 2, 3), strict=True):
        assert_same(row, published.by_celery((value,), {}, task))
    assert [row[2] for row in rows] == ["money", "", "money"]
    assert [msgspec.msgpack.decode(row[0])[1] for row in rows[:2]] == ["application/json", "application/x-msgspec+json"]
    with pytest.raises(RequestError, match=r"the app has no task 'proj\.ohter': do you mean 'proj\.other'\?"):
        encoded(app, ColumnNames(task="t", args=("a",)), pa.table({"t": [TASK, "proj.ohter"], "a": [1, 2]}))


def test_what_is_declared_can_be_shipped(app: Any) -> None:
    import pickle

    plan = JobPlan(ColumnNames(), task=TASK)
    app.conf.task_queues = [Queue("celery", Exchange("x", "topic"), routing_key="k", max_priority=3)]
    plan.template((TASK, ""), app)
    copy = pickle.loads(pickle.dumps(plan))
    (queue,) = copy.templates[TASK, ""].declare

    assert (queue.name, queue.exchange.name, queue.routing_key, queue.max_priority) == ("celery", "x", "k", 3)


def test_receivers_of_before_task_publish_count_and_nobody_is_told_it_was_sent(
    app: Any, published: Published, request: pytest.FixtureRequest
) -> None:
    told = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        headers["trace"] = "t-1"

    def after(**_: Any) -> None:
        told.append(1)

    signals.before_task_publish.connect(before, weak=False)
    signals.after_task_publish.connect(after, weak=False)
    request.addfinalizer(lambda: signals.before_task_publish.disconnect(before))
    request.addfinalizer(lambda: signals.after_task_publish.disconnect(after))
    (row,) = encoded(app, ColumnNames(), pa.table({"a": [1]}))

    assert told == []
    assert_same(row, published.by_celery((), {}))
    assert row[1]["trace"] == "t-1"


def test_a_task_that_takes_no_such_arguments(app: Any) -> None:
    with pytest.raises(RequestError, match=r"task 'proj.strict' can't be called with these arguments.*'y'"):
        encoded(app, ColumnNames(args=("a",)), pa.table({"a": [1]}), task="proj.strict")
    assert encoded(app, ColumnNames(args=("a",), kwargs={"y": "a"}), pa.table({"a": [1]}), task="proj.strict")


def test_unique_tasks_are_refused(app: Any) -> None:
    @app.task(shared=False, name="proj.unique", unique=Unique(by=("task",)))
    def unique(*args: object) -> None: ...

    match = r"^task 'proj\.\w+' has the header x-opendata-unique, but tasks of a job can't be unique"
    with pytest.raises(RequestError, match=match):
        encoded(app, ColumnNames(), pa.table({"a": [1]}), task="proj.unique")
    with pytest.raises(RequestError, match=match):
        encoded(app, ColumnNames(headers={HEADER: "a"}), pa.table({"a": ["key"]}))
    with pytest.raises(RequestError, match=match):
        encoded(app, ColumnNames(), pa.table({"a": [1]}), headers={HEADER: "key"})


@pytest.mark.parametrize(("setting", "value"), [("task_always_eager", True), ("task_protocol", 1)])
def test_an_app_that_sends_no_such_messages(app: Any, setting: str, value: object) -> None:
    setattr(app.conf, setting, value)
    with pytest.raises(RequestError, match=setting):
        encoded(app, ColumnNames(), pa.table({"a": [1]}))


@pytest.mark.parametrize(
    ("table", "columns", "what"),
    [
        ({"t": [TASK, "", TASK]}, ColumnNames(task="t"), "column 't' is '': it must be a text that is not empty"),
        ({"i": ["a", None]}, ColumnNames(task_id="i"), "column 'the id' (i) is null: it must be a text"),
        ({"q": ["a", None]}, ColumnNames(queue="q"), "column 'q' is null: it must be a text"),
        ({"q": ["a", "é" * 128]}, ColumnNames(queue="q"), f"column 'q' is '{'é' * 99}…: the queue name has 256 bytes"),
        ({"p": [1, 256]}, ColumnNames(priority="p"), "column 'p' is 256: priority 256 is not a number"),
        ({"p": [1, -1]}, ColumnNames(priority="p"), "column 'p' is -1: priority -1 is not a number"),
        (
            {"at": pa.array([0, 320_000_000_000_000_000], pa.timestamp("us", "UTC"))},
            ColumnNames(eta="at"),
            "column 'at' is 12110-05-25",
        ),
        (
            {"d": pa.array([0, 320_000_000_000_000_000], pa.timestamp("us"))},
            ColumnNames(args=("d",)),
            "column 'd' is 12110-05-25",
        ),
        (
            {"e": [None, "x" * 500]},
            ColumnNames(headers={"eta": "e"}),
            f"column 'e' is '{'x' * 99}…: the eta header 'xxx",
        ),
    ],
)
def test_a_row_that_can_not_be_sent_is_named(
    app: Any, table: dict[str, list[Any]], columns: ColumnNames, what: str
) -> None:
    plan = JobPlan(columns, task=TASK if columns.task is None else "", sources={"i": "the id"})
    arrow = pa.table(table)
    plan.check_columns(arrow.schema, {})
    plan.templates[TASK, ""] = plan.template((TASK, "celery"), app)
    encoder = RowEncoder(plan, "job", 7, lambda: 0)
    (batch,) = arrow.to_batches()
    with pytest.raises(InvalidMessage) as caught:
        list(encoder.encode(batch))
    assert str(caught.value).startswith(f"row 1 of partition 7 can't be sent: {what}")
    assert len(str(caught.value)) < 500
    assert caught.value.values["row"] == 1
    assert caught.value.values["partition"] == 7


def test_ids_are_the_same_again_and_differ_by_job_partition_and_row(app: Any) -> None:
    from kombu_opendata.spark.encode.row_encoder import task_id

    plan = JobPlan(ColumnNames(), task=TASK)
    plan.template((TASK, ""), app)
    table = pa.table({"a": list(range(10_000))})
    seen: set[str] = set()
    for job, partition in (("a", 0), ("a", 1), ("b", 0)):
        encoder = RowEncoder(plan, job, partition, lambda: 0)
        found = [
            id
            for batch in table.to_batches(max_chunksize=3000)
            for m in encoder.encode(batch)
            for id in m.headers["id"]
        ]
        assert found == [task_id(job, partition, row) for row in range(10_000)]
        assert all(uuid.UUID(id).version == 5 for id in found[::1000])
        seen.update(found)
    assert len(seen) == 30_000


def test_the_urls_of_other_brokers_are_refused(app: Any) -> None:
    from kombu_opendata.celery_integration.broker_access import BrokerAccess, access_of

    with pytest.raises(RequestError, match=r"redis://:\*\*@host"):
        BrokerAccess("redis://:secret@host/0")
    assert "secret" not in repr(BrokerAccess("opendata://user:secret@host"))
    assert parse(access_of(None, app).url).name == "spark-messages"
