"""DAG of one job a day: a table's rows become tasks, and the next step begins when they have ended."""

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import dag, task
from opendata_jobs import JobOperator


def submit_invoices(job_id: str, broker_url: str) -> None:
    from pyspark.sql import SparkSession

    from kombu_opendata.spark import submit_tasks

    spark = SparkSession.builder.remote("sc://spark:15002").getOrCreate()
    orders = spark.table("orders").where("day = current_date() - 1")
    submit_tasks(orders, "billing.invoice", broker_url=broker_url, args=["order_id"], job_id=job_id)


@task
def report(tasks: dict[str, Any]) -> None:
    print(f"{tasks.get('succeeded', 0)} invoices")


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False)
def invoices() -> None:
    sent = JobOperator(
        task_id="invoice",
        submit=submit_invoices,
        broker_url="{{ conn.opendata.get_uri() }}",
        retries=2,
        timeout=timedelta(hours=6),
    )
    report(sent.output)


invoices()
