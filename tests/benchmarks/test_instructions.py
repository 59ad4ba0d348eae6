"""Client and broker keep to the instructions of their budgets."""

from __future__ import annotations

import os

import pytest

from . import instructions


@pytest.mark.slow
def test_publish_delivery_and_ack_take_the_instructions_of_their_budgets() -> None:
    valgrind = instructions.find_valgrind()
    if valgrind is None:
        reason = "valgrind is missing: install the package valgrind"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    counts, budgets = instructions.count(valgrind), instructions.budgets()
    assert counts.keys() == budgets.keys()
    excess = {
        f"{stretch}, {side}": f"{counts[stretch][side]:,} instructions, budget {budget.now:,}"
        for stretch, sides in budgets.items()
        for side, budget in sides.items()
        if counts[stretch][side] > budget.now * instructions.TOLERANCE
    }
    assert not excess, "find the waste, or raise the budget in instructions.toml and say why in the commit"
