"""The dashboard, the alerts and the page on monitoring use what a real scrape of a real broker has."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from kombu_opendata.broker.process.logs import CONTEXT
from kombu_opendata.protocol.task_reports import TaskReport, TaskState

from ...support.certificates import Authority
from ...support.kombu_client import connected, declare, send
from ...support.processes import Children
from ...support.raw import RawClient
from ...support.scrape import Scrape, scrape_until
from ...support.served import ServedBroker

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "monitoring"
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
#: what Prometheus adds to each sample of a target
TARGET_LABELS = {"job", "instance"}
_METRIC = re.compile(r"\b(?:opendata_queue|slatedb|process|python|up)(?:_\w+)?\b(?:\{([^}]*)\})?(\[[^\]]+\])?")
_COUNTER = re.compile(r"_(?:total|count|sum|bucket)$")


@pytest.fixture(scope="module")
def found(module_store_folder: Path) -> Iterator[Scrape]:
    """A scrape of a broker to which about everything happened that makes a series."""
    from ...support.processes import children

    with children() as started:
        yield _busy(module_store_folder, started)


def _busy(folder: Path, started: Children) -> Scrape:
    options = ("--store", f"file://{folder}/s", "--listen", "tcp:127.0.0.1:0", "--listen", f"unix:{folder}/x.sock")
    certificate = Authority(folder).issue("server", "localhost").both
    served = ServedBroker(folder, *options, "--metrics", "0", "--tls-cert", str(certificate))
    started.add(served)
    with connected(f"opendata://{quote(f'{folder}/x.sock', safe='')}") as connection:
        channel = connection.channel()
        declare(channel, "q")
        send(channel, "q", "a", "b", "c")
        channel.basic_get("q").ack()
        message = channel.basic_get("q")
        message.run = TaskReport(TaskState.RAISED, task="t")
        message.ack()
        with RawClient(f"{folder}/x.sock", preamble=b"nonsense") as raw:
            raw.last_word()
        with pytest.raises(Exception, match="missing"):
            channel.queue_declare("missing", passive=True)
        return scrape_until(
            served.report["metrics_port"], lambda s: s.value("opendata_queue_checkpoint_size_bytes_count") > 0
        )


def expressions_of_dashboard() -> Iterator[tuple[str, str]]:
    dashboard = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.sub(r"label_values\((.*), \w+\)", r"\1", variable["query"]["query"])


def expressions_of_alerts() -> Iterator[tuple[str, str]]:
    text = (EXAMPLES / "alerts.yml").read_text()
    names, exprs = re.findall(r"- alert: (\w+)\n", text), re.findall(r"        expr: (.+)\n", text)
    assert len(names) == len(exprs) == len(set(names)) == text.count("summary:") > 8
    yield from zip(names, exprs, strict=True)


def rules_for_celery_exporter() -> list[dict[str, str]]:
    (group,) = yaml.safe_load((EXAMPLES / "celery-exporter.yml").read_text())["groups"]
    assert group.keys() == {"name", "rules"}
    rules: list[dict[str, str]] = group["rules"]
    return rules


def expressions_of_page() -> Iterator[tuple[str, str]]:
    for block in re.findall(r"```promql\n(.*?)```", PAGE, re.S):
        for line in block.strip().splitlines():
            yield "the page", line.partition("#")[0].strip()


EXPRESSIONS = [
    *expressions_of_dashboard(), *expressions_of_alerts(), *expressions_of_page(),
    *((rule["record"], rule["expr"]) for rule in rules_for_celery_exporter()),
]  # fmt: skip


@pytest.mark.parametrize(("where", "expr"), EXPRESSIONS, ids=[f"{number}" for number in range(len(EXPRESSIONS))])
def test_an_expression_is_about_series_that_exist(where: str, expr: str, found: Scrape) -> None:
    labels = labels_by_sample(found)
    assert expr.count("(") == expr.count(")"), expr
    used: set[str] = set()
    metrics = list(_METRIC.finditer(re.sub(r'"[^"]*"', '""', expr)))
    assert metrics, f"{where}: {expr} is about nothing"
    for match in metrics:
        name = match[0].partition("{")[0].partition("[")[0]
        assert name in labels, f"{where}: no scrape has {name}"
        selected = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", match[1] or ""))
        assert selected <= labels[name] | TARGET_LABELS, f"{where}: {name} has no such label"
        is_counter = bool(_COUNTER.search(name))
        assert is_counter == bool(match[2]), f"{where}: {name} is {'a counter' if is_counter else 'no counter'}"
        used |= labels[name]
    used |= set(re.findall(r'label_replace\(.*?, "(\w+)", "\$1"', expr))
    for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", expr):
        named = set(re.findall(r"\w+", grouping))
        assert named <= used | TARGET_LABELS, f"{where}: nothing has {named - used}"
    if "histogram_quantile" in expr:
        assert re.search(r"by \([^)]*\ble\b[^)]*\)", expr), f"{where}: quantiles need le"


def test_the_rules_for_celery_exporter_record_its_names() -> None:
    names = {"celery_queue_length", "celery_active_consumer_count", "celery_active_worker_count"}
    assert [rule.keys() for rule in rules_for_celery_exporter()] == [{"record", "expr"}] * len(names)
    assert {rule["record"] for rule in rules_for_celery_exporter()} == names
    page = (ROOT / "docs" / "compatibility.md").read_text()
    for rule in rules_for_celery_exporter():
        assert f"`{rule['record']}`" in page
        assert rule["expr"].startswith("sum by (queue_name) ("), "the only label of the exporter"
        assert '"queue_name", "$1", "queue", "(.+)"' in rule["expr"]


def labels_by_sample(found: Scrape) -> dict[str, set[str]]:
    labels: dict[str, set[str]] = defaultdict(set)
    labels["up"] = set()
    for sample in found.samples:
        labels[sample.name] |= set(sample.labels)
    return labels


def test_counters_are_only_looked_at_as_rates() -> None:
    for where, expr in EXPRESSIONS:
        for at in re.finditer(r"\[[^\]]+\]", expr):
            before = re.sub(r"\w+(?:\{[^}]*\})?$", "", expr[: at.start()])
            assert before.endswith(("rate(", "increase(")), (where, expr)


def test_the_dashboard_is_one_that_grafana_loads() -> None:
    dashboard = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    assert dashboard.keys() >= {"title", "uid", "schemaVersion", "panels", "templating", "time"}
    assert len(dashboard["uid"]) <= 40
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    cells: dict[tuple[int, int], int] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for cell in _cells(place):
            assert cells.setdefault(cell, panel["id"]) == panel["id"], f"{panel['title']} lies on another panel"
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("timeseries", "stat")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert [t["refId"] for t in panel["targets"]] == [chr(65 + n) for n in range(len(panel["targets"]))]
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables | {"__rate_interval"}
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = re.findall(r"by \(([^)]*)\)", target["expr"])
            assert all(label in grouping for label in legend for grouping in kept), target


def _cells(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


def test_alerts_say_labels_that_their_expression_keeps(found: Scrape) -> None:
    labels = labels_by_sample(found)
    for rule in (EXAMPLES / "alerts.yml").read_text().split("- alert: ")[1:]:
        (expr,) = re.findall(r"expr: (.+)\n", rule)
        grouping = re.search(r"by \(([^)]*)\)", expr)
        names = [match[0].partition("{")[0].partition("[")[0] for match in _METRIC.finditer(expr)]
        kept = set(re.findall(r"\w+", grouping[1])) if grouping else labels[names[0]] | TARGET_LABELS
        assert set(re.findall(r"\$labels\.(\w+)", rule)) <= kept, rule


# ---------------------------------------------------------------------- docs/monitoring.md
def rows_of(title: str) -> list[list[str]]:
    section = re.split(rf"(?m)^#+ {re.escape(title)}$", PAGE)[1]
    section = re.split(r"(?m)^#+ ", section)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_lists_the_fields_of_the_log() -> None:
    listed = [name for row in rows_of("The log") for name in re.findall(r"`(\w+)`", row[0])]
    assert listed == ["time", "level", "logger", "message", *CONTEXT, "exception"]
