"""Writes docs/capacity.md: ``python -m tests.benchmarks.capacity --out docs/capacity.md``.

The words are in `capacity_template.md`, prices and some measured constants in `capacity.toml`. What `make bench` has
measured is read from docs/benchmarks.md, and requests to a bucket from docs/object-stores.md, so this page must be
written again when they change. It is the same for the same constants: the model's seed is fixed.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import click

from .group_commit import Costs, Outcome, arrive, one_by_one, take_turns
from .targets import ROWS

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
TASKS = 1_000_000_000
SQS_REQUESTS, SQS_BATCH = 3, 10
HOUR, DAY, MONTH_HOURS = 3600, 86_400, 730
_BUCKETS_MS = (5, 20, 50)
_LOADS = (10, 30, 50, 70, 80, 90, 95)
#: what of a host is planned to be used: memory, and CPU of one core
_MEMORY_SHARE, _CORE_SHARE = 0.8, 0.8
#: of a request in docs/object-stores.md
_MEASURED_MS = 20
#: of the loads there: messages a second
_REQUESTS = {
    "idle for five minutes": 0.0,
    "1 message a second": 1.0,
    "100 messages a second": 100.0,
    "as fast as it can (1,000 a second on two busy cores)": 1000.0,
}
#: rows that the model is compared with: how many publish at once, and the time of a request to a bucket, in ms
_CHECKS = (
    ("publish.rate", 1, 0),
    ("publish8.rate", 8, 0),
    ("publish64.rate", 64, 0),
    *((f"s3.{name}{ms}", clients, ms) for ms in _BUCKETS_MS for name, clients in (("one", 1), ("eight", 8))),
)
#: a second, of the active record; docs/high-availability.md
_RECORD_READS = 1


class Requests(NamedTuple):
    """A measured load of docs/object-stores.md: messages and requests a second."""

    messages: float
    writes: float
    reads: float


class Value(NamedTuple):
    """A constant, and where it is from."""

    number: float
    source: str


class Capacity:
    """The tables of the page, by name.

    Raises:
        LookupError: a page that is read does not have the row.
    """

    def __init__(self, constants: dict[str, Any], benchmarks: str, object_stores: str) -> None:
        self._prices, self._limits, self._task = constants["prices"], constants["s3_limits"], constants["task"]
        self._instances, self._measured = constants["instances"], constants["measured"]
        self._benchmarks, self._object_stores = benchmarks, object_stores

    # ------------------------------------------------------------------ what was measured
    def measured(self, key: str) -> Value:
        """Ours in a row of the benchmarks: of docs/benchmarks.md, else of `capacity.toml`.

        Raises:
            LookupError: neither has it.
        """
        work = next(row.work for row in ROWS if row.key == key)
        cells = _row(self._benchmarks, work)
        if cells is not None and cells[0] != "–":
            return Value(_first_number(cells[0]), f"[benchmarks](benchmarks.md), “{work}”")
        if key in self._measured:
            return Value(self._measured[key], self._measured["source"])
        raise LookupError(f"neither docs/benchmarks.md has “{work}” nor capacity.toml {key}")

    def cost(self, key: str) -> float:
        return self.measured(key).number

    @cached_property
    def sync(self) -> float:
        """Microseconds of a small append with fsync."""
        cells = _row(self._benchmarks, "disk")
        if cells is None:
            raise LookupError("docs/benchmarks.md has no row “disk”")
        return 1000 * _first_number(cells[0].rpartition("fsync:")[2])

    @cached_property
    def loads(self) -> dict[str, Requests]:
        """Measured loads of a bucket."""
        found = {}
        for name, rate in _REQUESTS.items():
            cells = _row(self._object_stores, name)
            if cells is None:
                raise LookupError(f"docs/object-stores.md has no row “{name}”")
            found[name] = Requests(rate, _first_number(cells[0]) / HOUR, _first_number(cells[1]) / HOUR)
        return found

    @cached_property
    def folder(self) -> Costs:
        """A task's publish, delivery and ack on a folder."""
        return Costs(self.publishing.message + self.cost("cpu.consumed"), self.publishing.turn, self.sync)

    @cached_property
    def publishing(self) -> Costs:
        """As :attr:`folder`, without a consumer."""
        message = self.cost("cpu.stream")
        return Costs(message, self.cost("cpu.alone") - message, self.sync)

    # ------------------------------------------------------------------ tables
    def constants(self) -> str:
        one, rows = self._instances, []
        for name, key in (
            ("broker CPU, a publish that is alone", "cpu.alone"),
            ("broker CPU, a publish in a stream", "cpu.stream"),
            ("broker CPU, a delivery and its ack", "cpu.consumed"),
            ("broker CPU, a message in all", "cpu.all"),
            ("client CPU, a publish", "publish.cpu"),
        ):
            value = self.measured(key)
            rows.append((name, f"{value.number:.0f} µs", value.source))
        rows += [
            ("append of 4 kB and fsync", f"{self.sync:.0f} µs", "[benchmarks](benchmarks.md#machine), “disk”"),
            ("broker with one instance", f"{one['memory_mb']} MB, {one['descriptors']} descriptors", one["source"]),
            (
                "each further open instance, unused",
                f"{one['more_memory_mb']} MB, {one['more_descriptors']} descriptors, {one['more_cpu']} % of a core",
                one["source"],
            ),
            ("requests to a bucket", "see below", "[stores in a bucket](object-stores.md#requests-and-prices)"),
        ]
        return _table(("constant", "value", "source"), rows)

    def prices(self) -> str:
        price = self._prices
        source = f"list price, {price['where']}, {price['as_of']}"
        rows = [
            ("S3 Standard: 1,000 writes or lists", f"${1000 * price['s3_write']:.3f}", source),
            ("S3 Standard: 1,000 reads; deletions are free", f"${1000 * price['s3_read']:.4f}", source),
            ("S3 Standard: a GB for a month", f"${price['s3_gb_month']:.3f}", source),
            ("disk (EBS gp3): a GB for a month", f"${price['disk_gb_month']:.2f}", source),
            ("host (m7g.large, 2 vCPU, 8 GiB): an hour", f"${price['host_hour']:.4f}", source),
            ("SQS, standard queue: a million requests", f"${1e6 * price['sqs_standard']:.2f}", source),
            ("SQS, FIFO queue: a million requests", f"${1e6 * price['sqs_fifo']:.2f}", source),
        ]
        return _table(("price", "dollars", "source"), rows)

    def host(self) -> str:
        one, rows = self._instances, []
        for cores, gigabytes in ((2, 4), (2, 8), (4, 16)):
            memory = (_MEMORY_SHARE * 1e3 * gigabytes - one["memory_mb"]) / one["more_memory_mb"]
            cpu = (100 * _CORE_SHARE - one["cpu"]) / one["more_cpu"]
            rows.append((f"{cores} cores, {gigabytes} GB", _count(memory), _count(cpu), f"{cores // 2}"))
        heads = ("host", "instances by memory", "instances of one broker by idle CPU", "busy brokers")
        return _table(heads, rows)

    def rates(self) -> str:
        task = self.folder.message
        rows = [
            (what, f"{cost:.0f} µs", _count(1e6 * _CORE_SHARE / cost))
            for what, cost in (
                ("publish, each alone", self.cost("cpu.alone")),
                ("publish, in a stream", self.cost("cpu.stream")),
                ("consume and ack", self.cost("cpu.consumed")),
                ("publish in a stream, consume and ack: a task", task),
                ("a task in all: published in four ways, with what follows in two seconds", self.cost("cpu.all")),
            )
        ]
        return _table(("work", "broker CPU", "a second on 80 % of a core"), rows)

    def prefix(self) -> str:
        rows = []
        for name, load in self.loads.items():
            by_reads = self._limits["reads"] / load.reads
            by_writes = self._limits["writes"] / load.writes if load.writes else math.inf
            limit = "writes" if by_writes < by_reads else "reads"
            text = f"{_count(min(by_writes, by_reads))}, by {limit}"
            rows.append((name, f"{load.writes:.2f}", f"{load.reads:.2f}", text))
        return _table(("load of each instance", "writes a second", "reads a second", "instances in one prefix"), rows)

    def billion(self) -> str:
        rows, measured = [], {load.messages: load for load in self.loads.values()}
        for rate in (1, 10, 100, 1000):
            load = measured.get(rate)
            seen = _dollars(TASKS / rate * self._requests(load)) if load else "–"
            hours = TASKS / rate / HOUR
            requests, stored, hosts = (
                TASKS / rate * one for one in (self._requests(self.random(rate)), self._storage(rate), self._hosts(2))
            )
            cells = (seen, *map(_dollars, (requests, stored, hosts, requests + stored + hosts)))
            rows.append((f"{rate:,}", _days(hours), *cells))
        heads = ("tasks a second", "takes", "requests as measured", "requests by the model", "storage", "two hosts")
        return _table((*heads, "in all, by the model"), rows)

    def random(self, rate: float) -> Requests:
        """Requests for tasks at random moments, with a standby: the model's commits, and what else was measured."""
        loads = [load for load in self.loads.values() if load.messages]
        low, high = next(((one, two) for one, two in pairwise(loads) if rate <= two.messages), loads[-2:])
        share = min(1.0, (rate - low.messages) / (high.messages - low.messages))
        commits = arrive(self.folder.on_bucket(_MEASURED_MS), rate, 5_000).commits_per_second
        others = loads[0].writes - loads[0].messages
        return Requests(rate, commits + others, low.reads + share * (high.reads - low.reads) + _RECORD_READS)

    def _requests(self, load: Requests) -> float:
        """Dollars a second."""
        return float(self._prices["s3_write"] * load.writes + self._prices["s3_read"] * load.reads)

    def _storage(self, rate: float) -> float:
        """Dollars a second, for what a bucket keeps."""
        return float(self._kept_gb(rate) * self._prices["s3_gb_month"] / (MONTH_HOURS * HOUR))

    def _hosts(self, count: int) -> float:
        """Dollars a second."""
        return float(count * self._prices["host_hour"] / HOUR)

    def _kept_gb(self, rate: float) -> float:
        kilobytes = self._task["payload_kb"] + self._task["record_kb"]
        return float(rate * DAY * self._task["kept_days"] * kilobytes / 1e6)

    def cheaper(self) -> str:
        """From which rate on a broker and its standby on a bucket cost less than SQS."""
        return self._cheaper(1)

    def cheaper_batched(self) -> str:
        return self._cheaper(SQS_BATCH)

    def _cheaper(self, batch: int) -> str:
        rate = 10.0
        while (
            self._requests(self.random(rate)) + self._storage(rate) + self._hosts(2)
            > rate * SQS_REQUESTS * self._prices["sqs_standard"] / batch
        ):
            rate *= 1.05
        return _count(rate)

    def folder_billion(self) -> str:
        rows = []
        for rate in (10, 100, 1000, 5000):
            disk_gb = max(self._task["disk_gb"], 2 * self._kept_gb(rate))
            disk = TASKS / rate * disk_gb * self._prices["disk_gb_month"] / (MONTH_HOURS * HOUR)
            host = TASKS / rate * self._hosts(1)
            cells = (f"{disk_gb:,.0f} GB", *map(_dollars, (disk, host, disk + host)))
            rows.append((f"{rate:,}", _days(TASKS / rate / HOUR), *cells))
        return _table(("tasks a second", "takes", "disk", "its price", "one host", "in all"), rows)

    def sqs(self) -> str:
        rows = []
        for name, price in (("standard", self._prices["sqs_standard"]), ("FIFO", self._prices["sqs_fifo"])):
            dollars = TASKS * SQS_REQUESTS * price
            rows.append((name, _dollars(dollars), _dollars(dollars / SQS_BATCH)))
        return _table(("SQS queue", "3 requests a task", "all in batches of 10"), rows)

    def latency(self) -> str:
        rows = []
        for percent in _LOADS:
            rate = percent / 100 * 1e6 / self.folder.message
            alone = one_by_one(self.folder, rate)
            cells = [_milliseconds(alone) if alone is not None else "grows without end"]
            for costs in (self.folder, *(self.folder.on_bucket(ms) for ms in _BUCKETS_MS)):
                cells.append(_both(arrive(costs, rate)))
            rows.append((f"{percent} %", _count(rate), *cells))
        buckets = (f"bucket, {ms} ms" for ms in _BUCKETS_MS)
        return _table(("load", "tasks a second", "a commit each, mean", "folder", *buckets), rows)

    def instances(self) -> str:
        rows = []
        for count in (1, 2, 4, 16):
            costs = replace(self.folder, instances=count)
            found = [arrive(costs, rate) for rate in (500, 2000, 4000, 8000)]
            rows.append((f"{count}", *map(_both, found)))
        heads = ("instances", *(f"{rate:,} tasks a second in all" for rate in (500, 2000, 4000, 8000)))
        return _table(heads, rows)

    def memory(self) -> str:
        return str(self._instances["memory_mb"])

    def neighbour(self) -> str:
        flooded = replace(self.folder, is_flooded=True)
        rows = [
            ("nobody else", _both(arrive(self.folder, 100))),
            *(
                (f"another queue with {percent} % of the loop", _both(arrive(self.folder, self._rate(percent))))
                for percent in (30, 50, 80, 90)
            ),
            ("a client that floods", _both(arrive(flooded, 100))),
        ]
        return _table(("beside it", "p50, p99"), rows)

    def _rate(self, percent: float) -> float:
        return percent / 100 * 1e6 / self.folder.message

    def check(self) -> str:
        rows = []
        for key, clients, delay_ms in _CHECKS:
            try:
                real = self.cost(key)
            except LookupError:
                continue  # it was not measured
            costs = self.publishing.on_bucket(delay_ms) if delay_ms else self.publishing
            where = f"bucket, {delay_ms} ms" if delay_ms else "folder"
            model = take_turns(costs, clients, self.cost("publish.cpu"), 5_000).rate
            rows.append((f"{where}, {clients} at once: publishes a second", *_compared(model, real)))
        for name, clients in (("1 message a second", 1), ("100 messages a second", 4)):
            load = self.loads[name]
            model = arrive(
                self.folder.on_bucket(_MEASURED_MS), load.messages, 5_000, together=clients
            ).commits_per_second
            rows.append((f"bucket, {_MEASURED_MS} ms, {name}: writes a second", *_compared(model, load.writes)))
        return _table(("what", "model", "measured", "the model is off by"), rows)

    def shards(self) -> str:
        price, rows = self._prices, []
        for count in (1, 2, 4, 8):
            writes = count * arrive(self.folder.on_bucket(_MEASURED_MS), 1000 / count).commits_per_second
            dollars = TASKS / 1000 * writes * price["s3_write"]
            hosts = 2 * count * TASKS / 1000 / HOUR * price["host_hour"]
            rows.append((f"{count}", f"{writes:.0f}", _dollars(dollars), _dollars(hosts)))
        heads = ("shards", "commits a second", "their requests, a billion tasks", "two hosts each, the same time")
        return _table(heads, rows)

    def page(self, template: str) -> str:
        """The whole page: in the template, ``{{name}}`` stands for a table."""

        def fill(found: re.Match[str]) -> str:
            table: Callable[[], str] = getattr(self, found[1])
            return table()

        return re.sub(r"\{\{(\w+)\}\}", fill, template)


# ------------------------------------------------------------ reading and writing tables
def _row(page: str, name: str) -> list[str] | None:
    """The cells after the first one, of the first row with this name."""
    for line in page.splitlines():
        first, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
        if line.startswith("|") and first == name:
            return cells
    return None


def _first_number(text: str) -> float:
    found = re.search(r"\d[\d,]*\.?\d*", text)
    if found is None:
        raise LookupError(f"no number in “{text}”")
    return float(found[0].replace(",", ""))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _count(value: float) -> str:
    """Rounded to two digits: a plan has no more."""
    digits = len(str(int(value))) - 2
    return f"{round(value, -digits) if digits > 0 else int(value):,.0f}"


def _dollars(value: float) -> str:
    return f"${value:,.0f}"


def _days(hours: float) -> str:
    days = hours / 24
    return f"{days / 365:,.0f} years" if days > 1000 else f"{days:,.0f} days"


def _milliseconds(microseconds: float) -> str:
    value = microseconds / 1000
    return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"


def _both(outcome: Outcome) -> str:
    return f"{_milliseconds(outcome.percentile(50))}, {_milliseconds(outcome.percentile(99))}"


def _compared(model: float, real: float) -> tuple[str, str, str]:
    digits = 0 if real >= 100 else 1
    return f"{model:,.{digits}f}", f"{real:,.{digits}f}", f"{round(100 * (model / real - 1)) or 0:+d} %"


def written() -> str:
    """The page, from the constants and pages as they are."""
    constants = tomllib.loads((HERE / "capacity.toml").read_text(encoding="utf-8"))
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ("benchmarks.md", "object-stores.md")]
    return Capacity(constants, *pages).page((HERE / "capacity_template.md").read_text(encoding="utf-8"))


@click.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the page to this file.")
def main(out: Path | None) -> None:
    """Write the page about capacity and its costs."""
    try:
        text = written()
    except LookupError as error:
        raise click.ClickException(str(error)) from error
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
