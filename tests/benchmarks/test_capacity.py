"""docs/capacity.md is what its constants give, and its model does what can be calculated by hand."""

from __future__ import annotations

import pytest

from . import capacity
from .group_commit import Costs, arrive, one_by_one, take_turns

FOLDER = Costs(message=50, turn=150, commit=200)
BUCKET = Costs(message=50, turn=0, commit=20_000, is_bucket=True)


def test_the_page_is_what_its_constants_give() -> None:
    page = (capacity.DOCS / "capacity.md").read_text(encoding="utf-8")
    assert page == capacity.written(), "run: python -m tests.benchmarks.capacity --out docs/capacity.md"


def test_a_message_that_is_alone_waits_for_its_own_turn_and_commit() -> None:
    assert arrive(FOLDER, 1000, 100, together=1).waits == pytest.approx([400.0] * 100)
    assert arrive(BUCKET, 10, 100, together=1).waits == pytest.approx([20_050.0] * 100)


def test_messages_that_come_together_share_a_commit() -> None:
    found = arrive(FOLDER, 1000, 100, together=10)
    assert found.commits == 10
    assert found.waits == pytest.approx([150 + 10 * 50 + 200.0] * 100)


def test_on_a_bucket_a_message_waits_for_two_commits_at_most() -> None:
    found = arrive(BUCKET, 1000)
    assert 20_000 < found.percentile(50) < found.percentile(99) < 2 * 1.2 * 20_000
    assert found.commits_per_second <= 50


def test_without_shared_commits_the_wait_is_that_of_an_m_d_1_queue() -> None:
    # service 400 µs, load 0.5: a mean wait in the queue of 0.5 × 400 / (2 × 0.5) = 200 µs
    assert one_by_one(FOLDER, 1250) == pytest.approx(600)
    assert one_by_one(FOLDER, 2500) is None


def test_a_client_that_waits_for_each_answer_has_one_message_a_round() -> None:
    assert take_turns(FOLDER, 1, think=100, messages=1000).rate == pytest.approx(2000, rel=0.01)
    many = take_turns(FOLDER, 64, think=1, messages=6400)
    # the first to come back has a turn alone, and the other 63 the next one
    assert many.rate == pytest.approx(64e6 / (2 * (150 + 200) + 64 * 50), rel=0.01)


def test_instances_and_a_client_that_floods_make_others_wait() -> None:
    alone = arrive(FOLDER, 2000).percentile(99)
    assert arrive(Costs(50, 150, 200, instances=4), 2000).percentile(99) > alone
    flooded = arrive(Costs(50, 150, 200, is_flooded=True), 100)
    assert 2000 < flooded.percentile(50) < flooded.percentile(99) < 3 * 2350


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert arrive(FOLDER, 2000).waits == arrive(FOLDER, 2000).waits


def constants(**measured: float) -> capacity.Capacity:
    others: dict[str, dict[str, float]] = {name: {} for name in ("prices", "s3_limits", "task", "instances")}
    page = "| work | ours |\n| --- | --- |\n| client CPU per publish | 77.2 µs |\n"
    return capacity.Capacity({**others, "measured": {"source": "here", **measured}}, page, "")


def test_a_constant_is_that_of_the_page_or_else_that_of_the_file() -> None:
    found = constants(**{"publish.cpu": 1.0, "cpu.alone": 2.0})
    assert found.measured("publish.cpu") == (77.2, "[benchmarks](benchmarks.md), “client CPU per publish”")
    assert found.measured("cpu.alone") == (2.0, "here")


def test_a_constant_that_nobody_has_is_named() -> None:
    with pytest.raises(LookupError, match=r"broker CPU per publish: .* nor .* cpu\.alone"):
        constants().measured("cpu.alone")
