"""The one place where something is done: what a dialog or a call of the API asks for."""

from __future__ import annotations

from typing import Any

from ..errors import AccessRefused, PreconditionFailed
from .actions.action import Action, Done, Parameters, Preview, Report, unheard
from .visit import Visit


async def preview(visit: Visit, action: Action[Any], parameters: Parameters) -> Preview:
    """What the action would concern."""
    return await action.preview(visit.broker, parameters)


async def perform(visit: Visit, action: Action[Any], parameters: Parameters, report: Report = unheard) -> Done:
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
    return await action.perform(visit.broker, parameters, report)
