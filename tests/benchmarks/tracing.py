"""Throughput and CPU of a broker that makes spans of all messages, beside a broker that makes none (ours only).

Both brokers run during the whole measurement and take turns, each round in the other order. The SDK exports the spans
in batches, as JSON into ``/dev/null``. Messages to both brokers have a sampled ``traceparent``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from . import celery_app, clients
from .beside_backlog import sample
from .celery_app import Run
from .clients import Content
from .peers import Peer, broker_with
from .processes import run_alone
from .results import Results
from .targets import OURS, UNTRACED
from .workloads import PUBLISHERS, Sizes, a_queue, rate

TRACED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
_BEFORE = "from tests.benchmarks.tracing import export_spans; export_spans(); "
Step = Callable[[str], None]


def export_spans() -> None:
    """Set OpenTelemetry's SDK up in the broker's process."""
    null = open(os.devnull, "w")  # noqa: SIM115 # until the broker ends
    exporter = ConsoleSpanExporter(out=null, formatter=lambda span: span.to_json(indent=None))
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def measure(sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Publish to both brokers in turn, consume, and run Celery's tasks."""
    with ExitStack() as stack:
        brokers = {
            UNTRACED: stack.enter_context(broker_with(folder / "untraced")),
            OURS: stack.enter_context(broker_with(folder / "traced", "--open-telemetry", before=_BEFORE)),
        }
        for number in range(1, 2 * sizes.rounds + 1):
            for series, peer in sorted(brokers.items(), reverse=bool(number % 2)):
                _round(series, peer, sizes, results, folder)
            step(f"tracing, round {number}")


def _round(series: str, peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    count = sizes.publish_each * PUBLISHERS
    publish = partial(clients.publish, content=Content(headers={**clients.HEADERS, **TRACED}))
    with a_queue(peer, "tracing") as name:
        for row, function, processes in (("publish", publish, PUBLISHERS), ("consume", clients.consume, 1)):
            measured = sample(peer, function, name, count, processes)
            results.add(f"tracing.{row}", series, measured.rate)
            results.add(f"tracing.{row}_cpu", series, sum(measured.cpu.values()))
    with a_queue(peer, "tracing") as name:
        run = Run(peer, name, sizes.tasks, str(folder / f"{name}.json"), headers=TRACED)
        run_alone(celery_app.send, run)
        results.add("tracing.celery", series, rate(celery_app.work(run, folder / f"{name}.log")))
