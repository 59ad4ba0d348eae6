"""The page docs/capacity.md: ``python -m tests.benchmarks.capacity --out docs/capacity.md``.

The words are in `capacity_template.md`, prices and constants in `capacity.toml`, measured CPU in samples.json, and
requests to a bucket in docs/object-stores.md.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import click

from .record import Record
from .report import HERE, table
from .results import Results
from .targets import OURS

DOCS = HERE.parents[1] / "docs"
TASKS = 1_000_000_000
SQS_REQUESTS, SQS_BATCH = 3, 10
HOUR, DAY, MONTH_HOURS = 3600, 86_400, 730
#: the planned use of a host's memory, and of a core
_SHARE = 0.8
#: loads in docs/object-stores.md: messages a second
_LOADS = {
    "idle for five minutes": 0,
    "1 message a second": 1,
    "100 messages a second": 100,
    "as fast as it can (1,000 a second on two busy cores)": 1000,
}


class Requests(NamedTuple):
    """Messages and requests a second of one instance on a bucket."""

    messages: int
    writes: float
    reads: float


def requests(page: str) -> dict[str, Requests]:
    """Read the measured loads of docs/object-stores.md, by name.

    Raises:
        LookupError: the page lacks a load.
    """
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    cells = {row[0]: [cell.replace(",", "") for cell in row[1:3]] for row in rows if row[0] in _LOADS}
    if missing := _LOADS.keys() - cells.keys():
        raise LookupError(f"docs/object-stores.md has no row “{missing.pop()}”")
    return {name: Requests(rate, *(float(cell) / HOUR for cell in cells[name])) for name, rate in _LOADS.items()}


def rates(results: Results) -> Iterable[tuple[str, ...]]:
    """The broker's CPU for each kind of work, and the rate that follows."""
    cpu = {key: results.median(f"cpu.{key}", OURS) or math.nan for key in ("alone", "stream", "consumed", "all")}
    for work, cost in (
        ("publish, each alone", cpu["alone"]),
        ("publish, in a stream", cpu["stream"]),
        ("consume and ack", cpu["consumed"]),
        ("a task: publish in a stream, consume and ack", cpu["stream"] + cpu["consumed"]),
        ("a task in all, with the work of the next two seconds", cpu["all"]),
    ):
        yield work, f"{cost:.0f} µs", _count(1e6 * _SHARE / cost)


def billion(loads: dict[str, Requests], prices: dict[str, float], task: dict[str, float]) -> Iterable[tuple[str, ...]]:
    """The cost of a billion tasks at each measured rate: on a bucket with a standby, and in a folder."""
    for load in loads.values():
        if load.messages:
            seconds = TASKS / load.messages
            host = seconds / HOUR * prices["host_hour"]
            kept_gb = load.messages * DAY * task["kept_days"] * (task["payload_kb"] + task["record_kb"]) / 1e6
            months = seconds / HOUR / MONTH_HOURS
            asked = seconds * (prices["s3_write"] * load.writes + prices["s3_read"] * load.reads)
            bucket = asked + 2 * host + months * kept_gb * prices["s3_gb_month"]
            folder = host + months * max(task["disk_gb"], 2 * kept_gb) * prices["disk_gb_month"]
            days = f"{seconds / DAY:,.0f} days"
            yield f"{load.messages:,}", days, *map(_dollars, (asked, 2 * host, bucket, folder))


def _count(value: float) -> str:
    """Round to two digits."""
    digits = len(str(int(value))) - 2
    return f"{round(value, -digits) if digits > 0 else int(value):,.0f}"


def _dollars(value: float) -> str:
    return f"${value:,.0f}"


def written() -> str:
    """Return the page, from the constants, samples and measured requests."""
    constants = tomllib.loads((HERE / "capacity.toml").read_text(encoding="utf-8"))
    prices, instances, limits = constants["prices"], constants["instances"], constants["s3_limits"]
    loads = requests((DOCS / "object-stores.md").read_text(encoding="utf-8"))
    busy = loads["100 messages a second"]
    results = Record(DOCS / "benchmarks" / "samples.json").results({})
    sqs = TASKS * SQS_REQUESTS * prices["sqs_standard"]
    return (HERE / "capacity_template.md").read_text(encoding="utf-8").format(
        instances=instances,
        prices=prices,
        open_instances=_count((100 * _SHARE - instances["cpu"]) / instances["more_cpu"]),
        rates=table(("work", "broker CPU", "a second on 80 % of a core"), rates(results)),
        limits=limits,
        busy_instances=_count(min(limits["writes"] / busy.writes, limits["reads"] / busy.reads)),
        billion=table(
            ("tasks a second", "takes", "requests", "two hosts", "bucket, in all", "folder, one host, in all"),
            billion(loads, prices, constants["task"]),
        ),
        sqs=_dollars(sqs),
        sqs_batched=_dollars(sqs / SQS_BATCH),
    )  # fmt: skip


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
