"""Shorter plans with the same anomaly: steps are removed, ever fewer at a time, as long as the anomaly remains."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .plan import Plan, Step

#: attempts with a plan; each is a run
_ATTEMPTS = 400


def shrink(plan: Plan, fails: Callable[[Plan], bool], attempts: int = _ATTEMPTS) -> Plan:
    """Return a plan with fewer steps for which ``fails`` is still true."""
    size = max(len(plan.steps) // 2, 1)
    while attempts > 0:
        start, shortened = 0, False
        while start < len(plan.steps) and attempts > 0:
            attempts -= 1
            shorter = without(plan, start, size)
            if fails(shorter):
                plan, shortened = shorter, True
            else:
                start += size
        if size == 1 and not shortened:
            break
        size = max(size // 2, 1)
    return plan


def without(plan: Plan, start: int, count: int) -> Plan:
    """Return the plan without some steps; the others come at their times."""
    removed, rest = plan.steps[start : start + count], plan.steps[start + count :]
    if rest:
        after = sum(step.after for step in removed) + rest[0].after
        rest = (Step(round(after, 6), rest[0].actor, rest[0].action, rest[0].arguments), *rest[1:])
    return msgspec.structs.replace(plan, steps=(*plan.steps[:start], *rest))


def script_of(plan: Plan) -> str:
    """Return a plan as JSON, a line for each step."""
    steps = ",\n  ".join(msgspec.json.encode(step).decode() for step in plan.steps)
    return f'{{"seed": {plan.seed}, "store": "{plan.store}", "steps": [\n  {steps}\n]}}'
