"""Sends one workflow of each kind and prints its result. It needs a worker: see README.md."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import chain, chord, group
from tasks import add, double, total, unreliable

TIMEOUT_SECONDS = 60


def workflows() -> Iterator[tuple[str, Any]]:
    """The name and the result of each workflow. A workflow is sent when it is requested."""
    yield "chain", chain(add.s(2, 2), double.s(), double.s())()
    yield "group", group(add.s(number, number) for number in range(5))()
    yield "chord", chord((double.s(number) for number in range(10)), total.s())()
    yield "map", double.map([1, 2, 3]).delay()
    yield "starmap", add.starmap([(1, 2), (3, 4)]).delay()
    yield "chunks", add.chunks(zip(range(6), range(6), strict=True), 2).group()()
    yield "chord in chain", chain(group(add.s(1, 1), add.s(2, 2)), total.s(), double.s())()
    yield "countdown", add.apply_async((1, 1), countdown=1)
    yield "eta", add.apply_async((2, 2), eta=datetime.now(UTC) + timedelta(seconds=1))
    yield "retries", unreliable.delay(3)


if __name__ == "__main__":
    for name, result in workflows():
        print(f"{name:<16}{result.get(timeout=TIMEOUT_SECONDS)}", flush=True)
