"""Half a virtual day of the soak: nothing grows. `make soak` runs weeks."""

from __future__ import annotations

import pytest

from .run import soak


@pytest.mark.slow
def test_half_a_day_is_flat() -> None:
    done = soak(0.5, sampled_each_hours=1)
    assert done.counts["sessions"] == 12
    assert {name: verdict for name, verdict in done.verdicts().items() if not verdict.is_flat} == {}
