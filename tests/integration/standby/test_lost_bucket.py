"""The bucket is out of reach of the active broker: who goes on, who ends, and where clients go."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.errors import OpenDataError

from ...support.pair import Pair, url
from ...support.processes import children, tail, wait_until
from ...support.s3 import BUCKET, S3
from ...support.s3_proxy import Fault, S3Proxy

FAILED, FENCED = 1, 6
#: ten for the last commit, three for threads, and the rest for a busy machine
END_SECONDS = 60


@pytest.fixture
def own_way(s3: S3) -> Iterator[S3Proxy]:
    """One broker's own way to the bucket."""
    with s3.another_way() as proxy:
        yield proxy
        proxy.go_on()


@pytest.fixture
def pair(tmp_path: Path, s3: S3) -> Iterator[Pair]:
    with children() as started:
        yield Pair(f"s3://{BUCKET}/{tmp_path.name}", tmp_path, started, "--renew-every", "0.7")
        s3.proxy.go_on()


@pytest.mark.slow
def test_an_active_broker_that_alone_loses_the_bucket_is_replaced_and_its_clients_move(
    pair: Pair, own_way: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{own_way.port}")
        first = pair.start()
    pair.wait_active(first)
    second = pair.start()
    pair.wait_connected(first)
    with QueueClient(f"opendata://127.0.0.1:{first.port},127.0.0.1:{second.port}") as client:
        client.create("letters")
        client.send("letters", b"before")
        own_way.stop_answering()
        pair.wait_active(second)
        assert [one.body for one in client.pop("letters")] == [b"before"]
    assert first.wait(60) == FENCED
    assert "reports that it has taken over" in first.log.read_text()


@pytest.mark.slow
def test_a_broker_ends_in_time_while_the_bucket_does_not_answer(pair: Pair, s3: S3) -> None:
    broker = pair.start()
    pair.wait_active(broker)
    with QueueClient(url(broker), reconnect_timeout=1) as client, ThreadPoolExecutor() as pool:
        client.create("letters")
        s3.proxy.stop_answering()
        since = len(s3.proxy.log)
        sending = pool.submit(client.send, "letters", b"never confirmed")
        wait_until(lambda: any(one.kind == "wal" for one in s3.proxy.log[since:]), 60, "the write of the commit")
        assert broker.terminate(END_SECONDS) == FAILED, tail(broker.log)
        with pytest.raises(OpenDataError):
            sending.result(60)
    assert "what was not confirmed is not stored" in broker.log.read_text()


@pytest.mark.slow
def test_a_broker_that_opens_a_bucket_that_does_not_answer_ends_in_time(pair: Pair, s3: S3) -> None:
    since = len(s3.proxy.log)
    s3.proxy.rule = lambda request: Fault.SILENCE if request.kind == "manifest" else None
    broker = pair.start()
    wait_until(lambda: any(one.kind == "manifest" for one in s3.proxy.log[since:]), 60, "the opening")
    assert broker.terminate(END_SECONDS) == FAILED, tail(broker.log)
