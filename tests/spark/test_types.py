"""The table of values.md, which the site has: what each Spark type becomes with each serializer."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.errors import OpenDataError
from kombu_opendata.spark import submit_tasks

from ..support.spark import taken

PAGE = Path(__file__).with_name("values.md")
SERIALIZERS = ("pickle", "json", "msgspec", "yaml")
NAMES = {"datetime": datetime, "Decimal": Decimal, "inf": float("inf")}


def table() -> list[dict[str, str]]:
    """The rows of the table by heading; ``same`` is replaced."""
    lines = PAGE.read_text().splitlines()
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines if line[:1] == "|"]
    rows = [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]
    for row in rows:
        row.update({name: row["pickle"] for name in SERIALIZERS if row[name] == "same"})
    return rows


ROWS = table()


def test_the_table_has_all_types() -> None:
    assert len(ROWS) == 26
    assert sum(row[name] == "—" for row in ROWS for name in SERIALIZERS) == 12


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_worker_receives_what_the_table_says(spark: Any, broker_url: str, serializer: str) -> None:
    sent = [row for row in ROWS if row[serializer] != "—"]
    columns = [f"{row['example']} as `{row['Spark type']}`" for row in sent]
    df = spark.range(1).selectExpr(*columns)

    result = submit_tasks(df, "proj.types", broker_url=broker_url, serializer=serializer)

    result.wait_routed(timeout=120)
    (message,) = taken(broker_url)
    received = message.arguments[1]
    shown = {row["Spark type"]: eval(row[serializer], NAMES) for row in sent}
    assert received == shown
    assert {name: repr(value) for name, value in received.items()} == {name: repr(v) for name, v in shown.items()}


@pytest.mark.parametrize("row", [row for row in ROWS if "—" in row.values()], ids=lambda row: row["Spark type"])
def test_what_no_worker_would_understand_is_refused_before_the_job(
    spark: Any, broker_url: str, row: dict[str, str]
) -> None:
    df = spark.range(1).selectExpr(f"{row['example']} as x")
    for serializer in SERIALIZERS:
        if row[serializer] == "—":
            with pytest.raises(OpenDataError, match=r"kwargs\[x\]"):
                submit_tasks(df, "proj.types", broker_url=broker_url, serializer=serializer)
