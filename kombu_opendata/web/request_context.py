"""Visit: a request with its user and the broker as this user sees it, the dependency of each route."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from ..errors import AccessRefused, OpenDataError
from ..masking import Masking
from .access.authentication import Visitor, Visitors
from .jobs import BackgroundJobs
from .live_updates import UpdatePace
from .rendering import Renderer
from .settings import WebSettings
from .user_clients import Brokers, UserBroker


@dataclass(frozen=True)
class Site:
    """The components that all requests share."""

    settings: WebSettings
    brokers: Brokers
    renderer: Renderer
    masking: Masking
    jobs: BackgroundJobs
    visitors: Visitors
    pace: UpdatePace


@dataclass(frozen=True)
class Visit:
    """A request of a user."""

    request: Request
    site: Site
    visitor: Visitor

    @property
    def user(self) -> str:
        """The name of the broker's user; empty if there are no logins."""
        return self.visitor.user

    @property
    def broker(self) -> UserBroker:
        """The broker, as this user sees it."""
        return self.visitor.broker

    def check(self) -> None:
        """Raise AccessRefused if the login has ended, in operations that last longer than a request."""
        session = self.visitor.session
        if session is not None and not self.site.visitors.sessions.is_active(session):
            raise AccessRefused("your session has ended: reload the web UI to log in")


async def visit_of(request: Request) -> Visit:
    """Return the visit of a request."""
    visitor: Visitor = request.state.visitor
    with suppress(OpenDataError):  # the view reports the error
        await visitor.broker.identity()
    return Visit(request, request.app.state.site, visitor)


AVisit = Annotated[Visit, Depends(visit_of)]
