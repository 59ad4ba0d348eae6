"""Take-over after take-over, under load: nothing that was confirmed is lost, and nothing that was acked comes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.processes import Children
from ..support.s3 import BUCKET, S3
from ..support.seeds import seeded_random
from ..support.take_overs import FREEZE, HAND_OVER, KILL, TakeOvers

pytestmark = pytest.mark.slow


@pytest.fixture
def s3(s3: S3) -> S3:
    s3.proxy.delay_seconds = 0.02
    return s3


def run(take_overs: TakeOvers, causes: list[str]) -> None:
    for number, cause in enumerate(causes):
        print(f"take-over {number + 1}, {cause}: {take_overs.round(cause):.2f} s")
    found = take_overs.check()
    print(found)
    assert (found["lost"], found["again"]) == (0, 0)


def test_on_a_folder(tmp_path: Path, started: Children) -> None:
    take_overs = TakeOvers(str(tmp_path / "store"), tmp_path, started, seeded_random())
    run(take_overs, [KILL, HAND_OVER, KILL] * 5)


def test_on_a_bucket(tmp_path: Path, s3: S3, started: Children) -> None:
    take_overs = TakeOvers(f"s3://{BUCKET}/many", tmp_path, started, seeded_random())
    run(take_overs, [KILL, HAND_OVER, FREEZE, KILL] * 2)
