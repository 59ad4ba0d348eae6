"""The one place where something is done: what a dialog or a call of the API asks for."""

from __future__ import annotations

import asyncio
from typing import Any

from ..errors import AccessRefused, OpenDataError, PreconditionFailed
from .access import audit
from .actions.action import Action, ActionOutcome, Parameters, Preview, Report, unheard
from .jobs import BackgroundJob
from .visit import Visit


async def preview(visit: Visit, action: Action[Any], parameters: Parameters) -> Preview:
    """What the action would concern."""
    return await action.preview(visit.broker, parameters)


async def perform(visit: Visit, action: Action[Any], parameters: Parameters, report: Report = unheard) -> ActionOutcome:
    """Do it.

    Raises:
        AccessRefused: this page changes nothing.
        PreconditionFailed: there is nothing left that it could concern.
        OpenDataError: what the broker says.
    """
    if visit.site.settings.read_only:
        raise AccessRefused("this page is read-only: it was started with --read-only")
    found = await preview(visit, action, parameters)
    if not found.is_possible:
        raise PreconditionFailed(found.text)
    on = audit.subject(parameters.model_dump())
    try:
        done = await action.perform(visit.broker, parameters, report)
    except OpenDataError as exc:
        audit.noted(visit.user, visit.visitor.address, "failed: %s%s: %s", action.name, on, exc.text, is_bad=True)
        raise
    except asyncio.CancelledError:
        audit.noted(visit.user, visit.visitor.address, "stopped: %s%s", action.name, on)
        raise
    finally:
        visit.broker.forget_answers()
    counts = ", ".join(f"{count} {name}" for name, count in done.counts.items())
    audit.noted(visit.user, visit.visitor.address, "did: %s%s: %s", action.name, on, counts or "done")
    return done


async def begin(visit: Visit, action: Action[Any], parameters: Parameters, *, patience: float = 1.0) -> BackgroundJob:
    """Do it in the background; the job may have ended already, as this waits for it for ``patience`` seconds.

    Raises:
        LimitExceeded: this user has as many jobs as go on at a time.
    """

    async def work(report: Report) -> ActionOutcome:
        return await perform(visit, action, parameters, report)

    subject = parameters.model_dump(mode="json", exclude_defaults=True)
    job = visit.site.jobs.start(visit.user, action.title, action.name, subject, work)
    if job.task is not None:
        await asyncio.wait({job.task}, timeout=patience)
    return job
