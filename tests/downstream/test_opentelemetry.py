"""OpenTelemetry's instrumentation of Celery in workers and senders; its server is a collector."""

from __future__ import annotations

from typing import Any

from kombu_opendata import QueueClient

from ..support.processes import tail, wait_until
from ..support.served import ServedBroker
from ..support.workers import sender
from .collector import PATIENCE_SECONDS, Collector, collecting
from .compatibility import Row
from .conftest import RunProgram, StartWorker

COMPATIBILITY = Row(
    package="opentelemetry-instrumentation-celery",
    tried="spans of senders, tasks, and tasks that tasks send; errors; span links; an OTLP exporter whose server does "
    "not answer",
    result="Works: the message carries the trace. While the server does not answer, tasks run as before.",
)


def exporting(collector: Collector, **variables: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}", **variables}


def spans(collector: Collector) -> list[Any]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    requests = [ExportTraceServiceRequest.FromString(body) for path, body in collector.bodies if path == "/v1/traces"]
    return [span for each in requests for of in each.resource_spans for scope in of.scope_spans for span in scope.spans]


def wait_spans(collector: Collector, number: int) -> list[Any]:
    wait_until(
        lambda: len(spans(collector)) >= number,
        PATIENCE_SECONDS,
        lambda: f"{number} spans, has {[span.name for span in spans(collector)]}",
    )
    return spans(collector)


def test_a_trace_leads_from_the_sender_through_all_tasks(
    collector: Collector, start_worker: StartWorker, run_program: RunProgram
) -> None:
    env = exporting(collector)
    worker = start_worker("otel", env=env)
    run_program("otel.py", env=env)
    found = wait_spans(collector, 9)
    assert len({span.trace_id for span in found}) == 1
    names = {span.span_id: span.name for span in found}
    lines = sorted((span.name, names.get(span.parent_span_id, "")) for span in found)
    assert lines == [
        *[("apply_async/otel.child", "run/otel.parent")] * 2,
        *[("apply_async/otel.parent", "sender")] * 2,
        *[("run/otel.child", "apply_async/otel.child")] * 2,
        *[("run/otel.parent", "apply_async/otel.parent")] * 2,
        ("sender", ""),
    ]
    failed = [span for span in found if span.status.message]
    assert [(span.name, span.status.message) for span in failed] == [("run/otel.child", "-1 is negative")]
    assert worker.terminate() == 0, tail(worker.log)


def test_spans_are_linked(collector: Collector, start_worker: StartWorker, run_program: RunProgram) -> None:
    env = exporting(collector, SPAN_LINKS="1")
    start_worker("otel", env=env)
    run_program("otel.py", env=env)
    found = {span.span_id: span for span in wait_spans(collector, 9)}
    linked = {(span.name, found[link.span_id].name) for span in found.values() for link in span.links}
    assert linked == {(f"run/otel.{name}", f"apply_async/otel.{name}") for name in ("parent", "child")}


def test_a_server_that_hangs_does_not_slow_the_worker(
    broker: ServedBroker, start_worker: StartWorker, client: QueueClient
) -> None:
    number = 100
    with collecting(hangs=True) as silent:
        worker = start_worker("otel", env=exporting(silent))
        with sender(broker.url) as app:
            for each in range(number):
                app.send_task("otel.child", (each,))
        wait_until(
            lambda: len(list(client.iter_attempts(queues=["celery"], states=["succeeded"]))) == number,
            PATIENCE_SECONDS / 2,
            lambda: tail(worker.log),
        )
        wait_until(lambda: silent.requests, PATIENCE_SECONDS, "a request of the exporter")
        attempts = list(client.iter_attempts(queues=["celery"], states=["succeeded"]))
        assert sorted(each.runtime_ms for each in attempts)[number // 2] < 100
        assert worker.terminate() == 0, tail(worker.log)
