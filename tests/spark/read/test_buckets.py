"""A store in a bucket: its settings are given to Spark, whose processes have none in their environment."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from kombu.entity import Queue
from pyspark.sql import functions as F

from kombu_opendata.bucket_credentials import bucket_settings
from kombu_opendata.errors import RequestError, StoreSilent
from kombu_opendata.offline import open_store
from kombu_opendata.spark import read_table, submit_tasks
from kombu_opendata.storage.clock import SystemClock
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.records import keys, metadata
from kombu_opendata.storage.slatedb.store_reads import ReadOnlyStore

from ...support.bucket_broker import bucket_broker
from ...support.kombu_client import connected
from ...support.s3 import BUCKET, S3
from ...support.s3_proxy import Fault

SECRET = "not-for-plans"  # the server takes any


def settings_of(s3: S3) -> dict[str, str]:
    return {
        "endpoint": s3.environment["AWS_ENDPOINT"], "region": "us-east-1", "access_key_id": "test",
        "secret_access_key": SECRET,
    }  # fmt: skip


def test_one_place_for_the_settings_of_reading_and_writing(spark: Any, s3: S3) -> None:
    store, bucket = f"s3://{BUCKET}/spark", settings_of(s3)
    with bucket_broker("spark", EngineSettings()) as (_server, port):
        url = f"opendata://127.0.0.1:{port}"
        with connected(url) as connection:
            Queue("q")(connection.channel()).declare()
        job = submit_tasks(spark.range(600), "proj.add", broker_url=url, queue="q", args=["id"], bucket=bucket)
        assert job.wait_routed(timeout=60).rows == 600
        assert job.messages("message_id").count() == 600
        frame = read_table(spark, store, "messages", columns=["message_id", "body"], bucket=bucket)
        assert sum(b"proj" not in row.body for row in frame.collect()) == 600
        plan = frame._jdf.queryExecution()
        assert SECRET not in plan.toString() + plan.logical().treeString() + str(plan.executedPlan())
        no_queue = F.lit(None).cast("string")
        bad = submit_tasks(
            spark.range(2), "proj.add", broker_url=url, queue=no_queue, bad_rows="collect", bucket=bucket
        )  # fmt: skip
        assert bad.bad_rows().count() == 2
    assert any(".staged/" in path for path in s3.requests())


def test_a_bucket_that_disappears_during_reading(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that does not answer is an error within a minute, which names the store."""
    store = f"s3://{BUCKET}/lost"
    monkeypatch.setattr(ReadOnlyStore, "answer_seconds", 1.0)

    async def lose() -> None:
        engine = await Engine.open(store, "default", SystemClock(), EngineSettings())
        batch = engine.store.batch()
        batch.put(keys.metadata_key(1), metadata.encode(1, 1, 1, 1, 0, {}))
        await engine.store.write(batch)
        await engine.store.flush_memtable()
        await engine.close()
        async with await open_store(store, holds_files=False) as opened:
            s3.proxy.stop_answering(Fault.SILENCE)
            await opened.scan(b"\0", None)

    try:
        with pytest.raises(StoreSilent, match=f"the store {store} did not answer"):
            asyncio.run(lose())
    finally:
        s3.proxy.go_on()


def test_settings_that_are_unknown(spark: Any) -> None:
    with pytest.raises(RequestError, match="unknown setting 'regin' of a bucket: do you mean 'region'"):
        read_table(spark, "s3://b", "messages", bucket={"regin": "x"})
    with pytest.raises(RequestError, match="the setting endpoint of a bucket must be a text"):
        submit_tasks(spark.range(1), "t", broker_url="opendata://h:1", bucket={"endpoint": 5})


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "before")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    with bucket_settings({"region": "now", "session_token": "t", "endpoint": "http://h"}):
        inside = {name: os.environ[name] for name in ("AWS_REGION", "AWS_SESSION_TOKEN", "AWS_ALLOW_HTTP")}
    assert inside == {"AWS_REGION": "now", "AWS_SESSION_TOKEN": "t", "AWS_ALLOW_HTTP": "true"}
    assert (os.environ["AWS_REGION"], os.environ.get("AWS_SESSION_TOKEN")) == ("before", None)
