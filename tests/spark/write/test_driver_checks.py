"""What the driver finds wrong before Spark runs anything; without Spark."""

from __future__ import annotations

import datetime as dt
import logging
import re
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from celery import Celery
from kombu.entity import Exchange, Queue

from kombu_opendata.celery_integration.broker_access import access_of
from kombu_opendata.errors import NotFound, PreconditionFailed, RequestError, StoreFull, from_wire, wire_code
from kombu_opendata.spark import read_table
from kombu_opendata.spark.encode.plan import ColumnNames, JobPlan
from kombu_opendata.spark.write.task_arguments import TaskArguments, check_constants, check_options, check_properties
from kombu_opendata.spark.write.write_options import pack_plan, parse_write_options
from kombu_opendata.transport import amqp_errors as transport_errors

from ...support.kombu_client import connected

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            {"eta": "tomorrow"},
            "eta is 'tomorrow' and must be a datetime, a text in ISO 8601, or a column of",
        ),
        ({"eta": 5}, "eta is 5 and must be"),
        ({"eta": NOW.date()}, "eta is datetime.date(2026, 1, 2) and must be"),
        (
            {"expires": "soon"},
            "expires is 'soon' and must be a datetime, a text in ISO 8601, a number of seconds",
        ),
        ({"expires": True}, "expires is True and must be"),
        ({"countdown": "5"}, "countdown is '5' and must be a number of seconds"),
        ({"countdown": dt.timedelta(seconds=5)}, "countdown is datetime.timedelta(seconds=5) and must be"),
        ({"retries": "x"}, "retries is 'x' and must be a number"),
        ({"time_limit": "x"}, "time_limit is 'x' and must be a number of seconds"),
        ({"serializer": 5}, "serializer is 5 and must be a text"),
        ({"link": "proj.after"}, "link is 'proj.after' and must be a signature, or a list of them"),
    ],
)
def test_values_that_can_not_be(options: dict[str, Any], what: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_options(options)
    assert str(caught.value).startswith(what)
    assert "\n" not in str(caught.value)


def test_values_that_can_be() -> None:
    for eta in (None, NOW, NOW.replace(tzinfo=None), "2026-01-02T03:04:05Z"):
        check_options({"eta": eta})
    for expires in (None, NOW, 5, 0.5, "2026-01-02T03:04:05+01:00"):
        check_options({"expires": expires, "countdown": 1.5})


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"args": {"n"}}, "args is {'n'} and must be a list"),
        ({"args": {"a": "n"}}, "args is {'a': 'n'} and must be a list"),
        ({"kwargs": {"n"}}, "kwargs is {'n'} and must be a list, or a mapping of keywords"),
        ({"queue": ""}, "queue is empty: write a text, or leave it out"),
        ({"headers": {"id": "x"}}, "the header 'id' can't be given, because each task has its own"),
        ({"headers": {"spark_job": "x"}}, "the header 'spark_job' can't be given"),
    ],
)
def test_arguments_of_a_wrong_kind(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(RequestError) as caught:
        TaskArguments("mail.letter", **arguments).check(None)
    assert str(caught.value).startswith(what)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"countdown": 1e300}, "task 'mail.letter' can't be called with these arguments and options: OverflowError"),
        ({"delivery_mode": "x"}, "task 'mail.letter' can't be called with these arguments and options: KeyError: 'x'"),
        ({"headers": {"x": "y" * 70_000}}, "no row can be sent: the value of header 'x' has 70000 bytes"),
        (
            {"headers": {f"h{n}": "y" for n in range(300)}},
            "no row can be sent: the message has 312 headers; the limit is 255",
        ),
        ({}, "no row can be sent: UnicodeEncodeError"),
    ],
    ids=str,
)
def test_constants_with_which_no_row_can_be_sent(options: dict[str, Any], what: str) -> None:
    constants = {} if options else {"args[1]": "\ud800"}
    columns = ColumnNames(args=("n", *constants), task_id="tid", constants=constants)
    plan = JobPlan(columns, "mail.letter", "", options)
    schema = pa.schema([("n", pa.int64()), ("tid", pa.string())])
    with pytest.raises(RequestError) as caught:
        check_constants(plan, schema)
    assert str(caught.value).startswith(what)


# ---------------------------------------------------------------------- names of options
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("jobid", "job_id"),
        ("jobId", "job_id"),
        ("JOB-ID", "job_id"),
        ("job", "job_id"),
        ("job_name", "job_id"),
        ("taskId", "task_id"),
        ("task_ids", "task_id"),
        ("prio", "priority"),
        ("kwarg", "kwargs"),
        ("queue_name", "queue"),
        ("count_down", "countdown"),
    ],
)
def test_an_option_in_another_spelling(name: str, meant: str) -> None:
    """It would become a property of the messages, so that a second run of the job sends all tasks again."""
    with pytest.raises(RequestError, match=f"no option '{name}': do you mean '{meant}'"):
        check_options({name: "x"})


def test_options_that_do_not_apply_to_jobs() -> None:
    with pytest.raises(RequestError, match=r"no option 'zzz': choose from app, args, .*countdown"):
        check_options({"zzz": True})
    with pytest.raises(RequestError, match="'retry' has no effect on the tasks of a job"):
        check_options({"retry": True})
    with pytest.raises(RequestError, match="'job_id' can't be among the options of apply_async: give it beside them"):
        check_options({"job_id": "nightly"})


def test_stamps_are_named_by_an_option() -> None:
    check_options({"stamped_headers": ["tenant"], "tenant": "a"})
    with pytest.raises(RequestError, match="no option 'tennant'"):
        check_options({"stamped_headers": ["tenant"], "tennant": "a"})


def test_properties_are_apart_from_options() -> None:
    """``apply_async`` makes a property of each option that it does not know."""
    check_properties({"reply_to": "results", "app_id": "shop", "timestamp": NOW, "expiration": 5.5})
    for name, text in (
        ("reply_to", "'reply_to' is a property of AMQP messages: write properties={'reply_to': …}"),
        ("replyTo", "there is no option 'replyTo': do you mean properties={'reply_to': …}?"),
        ("App-ID", "there is no option 'App-ID': do you mean properties={'app_id': …}?"),
    ):
        with pytest.raises(RequestError) as caught:
            check_options({name: "x"})
        assert str(caught.value) == text
    for properties, what in (
        ({"replyTo": "x"}, "there is no property 'replyTo': do you mean 'reply_to'?"),
        ({"x-y": "x"}, "there is no property 'x-y': choose from app_id, cluster_id"),
        ({"priority": 3}, "'priority' is an option of apply_async: give it beside properties"),
        ({"reply_to": 5}, "the property reply_to is 5 and must be a str, the same for all rows"),
        ({"expiration": True}, "the property expiration is True and must be a number"),
    ):
        with pytest.raises(RequestError, match=re.escape(what)):
            check_properties(properties)


def written(**options: str) -> JobPlan:
    """The plan of the options of ``df.write``, as Spark gives them."""
    given = {"broker_url": "opendata+memory://none", "task": "mail.letter", **options}
    return parse_write_options(given, pa.schema([("n", pa.int64())]), {})[0]


def test_names_of_writer_options() -> None:
    """Spark makes all names lower case."""
    assert written(jOb_ID="nightly", queryname="spark's own", qUEue="slow").queue == "slow"
    for name in ("jobid", "jobId", "job"):
        with pytest.raises(RequestError, match=f"unknown option '{name.lower()}': do you mean 'job_id'"):
            written(**{name: "nightly"})
    with pytest.raises(RequestError, match="unknown option 'zzz': choose from app, args, bad_rows, broker_url, "):
        written(zzz="true")
    assert written(properties='{"app_id": "shop"}', options='{"shadow": "x"}').options == {
        "shadow": "x",
        "app_id": "shop",
    }
    with pytest.raises(RequestError, match="no property 'appId': do you mean 'app_id'"):
        written(properties='{"appId": "shop"}')
    with pytest.raises(RequestError, match="no option 'jobId': do you mean 'job_id'"):
        written(options='{"jobId": "nightly"}')
    with pytest.raises(RequestError, match="job_id is empty"):
        written(job_id="")


@pytest.mark.parametrize("second", ["n", "N"])
def test_columns_of_the_writer_that_are_alike(second: str) -> None:
    given = {"broker_url": "opendata+memory://none", "task": "mail.letter"}
    schema = pa.schema([("n", pa.int64()), (second, pa.int64()), ("m", pa.int64())])
    for options in ({}, {"args": "n"}, {"args": "m", "priority_column": "n"}):
        with pytest.raises(RequestError, match=f"several columns are named '[nN]': n, {second}; rename all but one"):
            parse_write_options({**given, **options}, schema, {})
    assert parse_write_options({**given, "args": "m"}, schema, {})[0].columns.args == ("m",)


def test_a_task_that_has_no_column_but_its_id() -> None:
    plan = JobPlan(ColumnNames(task_id="tid"), "mail.letter")
    check_constants(plan, pa.schema([("tid", pa.string())]))
    assert list(plan.templates) == [("mail.letter", "")]


def test_names_of_reader_arguments() -> None:
    with pytest.raises(RequestError, match="the column 'task' is named twice"):
        read_table(None, "/store", "messages", columns=["task", "message_id", "task"])
    for name, meant in (("colums", "columns"), ("firstId", "first_id"), ("job-id", "job_id")):
        wrong: dict[str, Any] = {name: "x"}
        with pytest.raises(RequestError, match=f"unknown option '{name}': do you mean '{meant}'"):
            read_table(None, "/store", "messages", **wrong)


def test_options_beside_those_of_a_call() -> None:
    """``stream_tasks`` returns a writer that takes more options, but all about tasks are decided."""
    plan = pack_plan(JobPlan(ColumnNames(), task="mail.letter"), access_of("opendata+memory://none"))
    given = {"broker_url": "opendata+memory://none", "plan": plan, "checkpointLocation": "/c"}
    assert parse_write_options(given, pa.schema([]), {})[0].task == "mail.letter"
    with pytest.raises(RequestError, match="the option queue has no effect here"):
        parse_write_options({**given, "queue": "other"}, pa.schema([]), {})


# ---------------------------------------------------------------------- tasks
def shop(*names: str) -> Celery:
    """An app with these tasks."""
    app = Celery("shop", broker="opendata+memory://none", set_as_current=False)

    def nothing() -> None:
        pass

    for name in names:
        app.task(nothing, name=name, shared=False)
    return app


def test_a_task_that_the_app_does_not_have() -> None:
    plan = JobPlan(ColumnNames())
    with pytest.raises(RequestError) as caught:
        plan.template(("mail.leter", ""), shop("mail.letter", "mail.visit"))
    assert str(caught.value) == (
        "the app has no task 'mail.leter': do you mean 'mail.letter'? For a task of another program, give broker_url "
        "instead of app"
    )
    with pytest.raises(RequestError, match=r"no task 'billing': it has mail\.letter, mail\.visit\. For a task of"):
        plan.template(("billing", ""), shop("mail.visit", "mail.letter"))
    with pytest.raises(RequestError, match=r"no task 'letter': do you mean 'mail\.letter'\?"):
        plan.template(("letter", ""), shop("mail.letter"))
    assert plan.template(("mail.letter", ""), shop("mail.letter")).headers["task"] == "mail.letter"


def test_an_app_without_tasks_sends_any() -> None:
    assert JobPlan(ColumnNames()).template(("mail.leter", ""), shop()).headers["task"] == "mail.leter"
    assert JobPlan(ColumnNames()).template(("mail.leter", "")).headers["task"] == "mail.leter"


def test_tasks_that_libraries_share_with_every_app() -> None:
    """In a process of its own, as they are shared for good."""
    program = (
        "from celery import Celery, shared_task\n"
        "from kombu_opendata.errors import RequestError\n"
        "from kombu_opendata.spark.encode.plan import ColumnNames, JobPlan\n"
        "def clean(): ...\n"
        "app = Celery(broker='opendata+memory://none')\n"
        "assert JobPlan(ColumnNames()).template(('mail.letter', ''), app).headers['task'] == 'mail.letter'\n"
        "shared_task(clean, name='library.clean')\n"
        "Celery('another').task(clean, name='another.clean')\n"
        "for app in None, Celery(broker='opendata+memory://none'):\n"
        "    plan = JobPlan(ColumnNames())\n"
        "    for task in 'mail.letter', 'library.clean':\n"
        "        assert plan.template((task, ''), app).headers['task'] == task\n"
        "try:\n"
        "    plan.template(('library.claen', ''), app)\n"
        "except RequestError as exc:\n"
        "    assert 'library.clean' in str(exc)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_tasks_in_modules_that_the_app_names(caplog: pytest.LogCaptureFixture) -> None:
    app = shop("mail.visit")
    app.conf.include = ["tests.support.apps.nowhere"]
    assert JobPlan(ColumnNames()).template(("mail.letter", ""), app).headers["task"] == "mail.letter"
    (record,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert "task modules can't be imported here, so task 'mail.letter' is not checked" in record.getMessage()


# ---------------------------------------------------------------------- queues
def test_a_queue_that_exists_with_other_arguments(broker_url: str) -> None:
    with connected(broker_url) as connection:
        channel = connection.default_channel
        Queue("limited", queue_arguments={"x-max-length": 5})(channel).declare()
        Queue("plain")(channel).declare()
        Exchange("shop", type="topic")(channel).declare()
    app = Celery("shop", broker=broker_url, set_as_current=False)
    access = access_of(None, app)
    plan = JobPlan(ColumnNames())
    for queue in ("plain", "new", "limited"):
        plan.template(("mail.letter", queue), app)

    with access.connect() as broker:
        with pytest.raises(PreconditionFailed, match="queue 'limited' exists with x-max-length=5") as caught:
            broker.check(plan.declared())
        assert "\n" not in str(caught.value)
        with pytest.raises(PreconditionFailed, match="exchange 'shop'"):
            broker.check([Exchange("shop", type="direct")])
        broker.check([Exchange("shop", type="topic"), Queue("limited", queue_arguments={"x-max-length": 5})])

    with connected(broker_url) as connection, pytest.raises(NotFound):
        Queue("new")(connection.default_channel).queue_declare(passive=True)


def test_errors_keep_their_class_over_a_report() -> None:
    refused = transport_errors.translate(PreconditionFailed("queue 'limited' exists"))
    assert isinstance(refused, PreconditionFailed)
    assert wire_code(refused) == "precondition_failed"
    assert type(from_wire(wire_code(refused), "x", {})) is PreconditionFailed
    assert wire_code(StoreFull("x")) == "store_full"
