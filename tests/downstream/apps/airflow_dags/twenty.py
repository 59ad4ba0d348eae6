"""A DAG of twenty tasks in three steps; the results of a step are the arguments of the next one."""

from datetime import datetime

from airflow.sdk import dag, task

PARTS = 18


@task
def first() -> int:
    return 1


@task
def part(start: int, number: int) -> int:
    return start + number


@task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@dag(schedule="@once", start_date=datetime(2026, 1, 1), catchup=False, is_paused_upon_creation=False)
def twenty() -> None:
    start = first()
    total([part.override(task_id=f"part_{number}")(start, number) for number in range(PARTS)])


twenty()
