"""The token bucket of a job's routing."""

from __future__ import annotations

import pytest

from kombu_opendata.broker.instance.staged_job_runner import RateLimit


@pytest.mark.parametrize("rate", [0.5, 7.0, 300.0, 50_000.0])
def test_the_rate_is_kept_and_nothing_is_made_up_for(rate: float) -> None:
    now, rows = 100.0, 0
    limit = RateLimit(rate, now)
    assert limit.wait(now) == 0, "the first rows are not delayed"
    for _ in range(2000):
        pause = limit.wait(now)
        if pause:
            now += pause
            continue
        taken = limit.rows
        assert taken >= 1
        limit.take(taken)
        rows += taken
    assert rows == pytest.approx(rate * (now - 100.0), rel=0.02, abs=rate / 10 + 1)
    now += 3600
    assert limit.wait(now) == 0
    assert limit.rows <= max(rate / 10, 1)
