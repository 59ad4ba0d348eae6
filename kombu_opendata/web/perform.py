"""Execution of actions for dialogs and API calls, with the audit log."""

from __future__ import annotations

import asyncio

from ..errors import AccessRefused, OpenDataError, PreconditionFailed
from .access import audit
from .actions.action import Action, ActionOutcome, Parameters, Report
from .jobs import BackgroundJob
from .visit import Visit


async def perform(
    visit: Visit, action: Action, parameters: Parameters, report: Report = lambda _progress: None
) -> ActionOutcome:
    """Execute an action and log it.

    Raises:
        AccessRefused: the web UI is read-only.
        PreconditionFailed: there is nothing left to act on.
        OpenDataError: the broker refuses the action or is unavailable.
    """
    if visit.site.settings.read_only:
        raise AccessRefused("the web UI is read-only: it was started with --read-only")
    effect = await parameters.preview(visit.broker)
    if not effect.is_possible:
        raise PreconditionFailed(effect.text)
    target = audit.subject(parameters.model_dump())
    try:
        outcome = await parameters.perform_in_steps(visit.broker, report)
    except OpenDataError as exc:
        audit.noted(visit.user, visit.visitor.address, "failed: %s%s: %s", action.name, target, exc.text, is_bad=True)
        raise
    except asyncio.CancelledError:
        audit.noted(visit.user, visit.visitor.address, "stopped: %s%s", action.name, target)
        raise
    finally:
        visit.broker.forget_answers()
    counts = ", ".join(f"{count} {name}" for name, count in outcome.counts.items())
    audit.noted(visit.user, visit.visitor.address, "did: %s%s: %s", action.name, target, counts or "done")
    return outcome


async def begin(visit: Visit, action: Action, parameters: Parameters, *, patience: float = 1.0) -> BackgroundJob:
    """Execute an action in the background; wait up to ``patience`` seconds for its end.

    Raises:
        LimitExceeded: this user has as many running jobs as are permitted.
    """

    async def work(report: Report) -> ActionOutcome:
        return await perform(visit, action, parameters, report)

    subject = parameters.model_dump(mode="json", exclude_defaults=True)
    job = visit.site.jobs.start(visit.user, action.title, action.name, subject, work)
    if job.task is not None:
        await asyncio.wait({job.task}, timeout=patience)
    return job
