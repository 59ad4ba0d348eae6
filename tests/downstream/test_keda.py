"""KEDA's scalers: what the triggers of deploy/kubernetes/keda.yaml read, from a real Prometheus and the broker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from ..support.processes import wait_until
from ..support.scrape import fetch
from ..support.served import ServedBroker
from .compatibility import Row
from .conftest import RunProgram, StartWorker
from .prometheus import PATIENCE_SECONDS, StartPrometheus

COMPATIBILITY = Row(
    package="KEDA",
    version="2.20",
    tried="the queries of the `prometheus` and `metrics-api` scalers, by KEDA's documentation, without a cluster",
    result="The `prometheus` query has one value as soon as the queue exists, and 0 when its tasks have ended. Before, "
    'it has none, which is an error to KEDA with `ignoreNullValues: "false"`. The `metrics-api` value counts '
    "ready messages only.",
    settings="[keda.yaml](../deploy/kubernetes/keda.yaml)",
)
FILE = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "keda.yaml"


def test_the_query_of_the_prometheus_scaler(
    broker: ServedBroker, start_prometheus: StartPrometheus, run_program: RunProgram, start_worker: StartWorker
) -> None:
    (trigger,) = yaml.safe_load(FILE.read_text())["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    query = trigger["metadata"]["query"]
    prometheus = start_prometheus({"opendata-queue": broker.metrics_port})
    prometheus.wait_values('up{job="opendata-queue"}', "job", {"opendata-queue": 1})
    assert prometheus.query(query) == [], "with ignoreNullValues=false an error, for which KEDA has the fallback"
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    run_program("plain.py")
    prometheus.wait_values(query, "", {"": 4})
    assert len(prometheus.query(query)) == 1, "KEDA wants one element"
    start_worker("plain")
    prometheus.wait_values(query, "", {"": 0})


def test_the_location_of_the_metrics_api_scaler(
    broker: ServedBroker, run_program: RunProgram, start_worker: StartWorker
) -> None:
    text = FILE.read_text()
    (path,) = re.findall(r"#\s+url: http://[^/\s]+(/\S+)", text)
    (location,) = re.findall(r"#\s+valueLocation: (\S+)", text)

    def value() -> Any:
        with fetch(broker.metrics_port, path) as answer:
            found = json.load(answer)
        try:
            for step in location.split("."):  # GJSON: a key of an object, or an index of an array
                found = found[int(step) if isinstance(found, list) else step]
        except IndexError:
            return None
        return found

    assert value() is None, "the queue does not exist yet: KEDA reports an error and keeps the workers"
    run_program("plain.py")
    wait_until(lambda: value() == 4, PATIENCE_SECONDS, "four tasks are ready")
    start_worker("plain")
    wait_until(lambda: value() == 0, PATIENCE_SECONDS, "no task is ready")
