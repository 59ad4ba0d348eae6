"""Take-overs by a standby, one after the other, under load: how long each takes, what is lost, what comes twice."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import obstore

from ..support.processes import Children
from ..support.s3 import BUCKET, s3_server
from ..support.take_overs import FREEZE, HAND_OVER, KILL, TakeOvers
from .processes import BenchError
from .results import Results
from .targets import OURS
from .workloads import Sizes

#: so long a request to the bucket takes
REQUEST_SECONDS = 0.02
_SAMPLES = 30
_ROWS = {KILL: "kill", HAND_OVER: "planned", FREEZE: "frozen"}


def steps(sizes: Sizes) -> int:
    """How often `measure` calls back."""
    return sizes.take_overs


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Adds a sample for each take-over: two thirds on a folder, one third on a bucket; calls `step` after each."""
    on_bucket = sizes.take_overs // 3
    place = folder / "take-over"
    place.mkdir()
    started = Children()
    try:
        _rounds("folder", str(place / "store"), place, started, sizes.take_overs - on_bucket, (KILL, HAND_OVER),
                results, step)  # fmt: skip
    finally:
        started.clean_up()
    place = folder / "take-over-bucket"
    place.mkdir()
    started = Children()
    try:
        with s3_server(started, place) as s3:
            own = _request_seconds()
            s3.proxy.delay_seconds = max(0.0, REQUEST_SECONDS - own)
            results.remarks.append(f"Of the 20 ms a request, the S3 server itself takes {1000 * own:.0f} ms.")
            causes = (KILL, HAND_OVER, KILL, FREEZE)
            _rounds("bucket", f"s3://{BUCKET}/bench", place, started, on_bucket, causes, results, step)
    finally:
        started.clean_up()


def _request_seconds() -> float:
    """How long the server takes for a small object."""
    store = obstore.store.from_url(f"s3://{BUCKET}/probe")
    obstore.put(store, "probe", b"x")
    taken = []
    for _ in range(_SAMPLES):
        began = time.perf_counter()
        obstore.get(store, "probe").bytes()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _rounds(
    where: str, store: str, folder: Path, started: Children, count: int, causes: tuple[str, ...], results: Results,
    step: Callable[[str], None],
) -> None:  # fmt: skip
    try:
        take_overs = TakeOvers(store, folder, started, random.Random(count))
        for number in range(count):
            cause = causes[number % len(causes)]
            results.add(f"takeover.{where}.{_ROWS[cause]}", OURS, take_overs.round(cause))
            step(f"take-over on a {where}, {cause}, {number + 1}")
        found = take_overs.check()
    except AssertionError as exc:
        raise BenchError(f"take-over on a {where}: {exc}") from exc
    for cause, seconds in take_overs.seconds.items():
        results.remarks.append(
            f"{len(seconds)} take-overs on a {where} ({cause}): median {sorted(seconds)[len(seconds) // 2]:.2f} s, "
            f"slowest {max(seconds):.2f} s."
        )
    results.remarks.append(f"Take-overs on a {where}: {found['confirmed']:,} publishes were confirmed.")
    results.add("takeover.lost", OURS, found["lost"])
    results.add("takeover.again", OURS, found["again"])
