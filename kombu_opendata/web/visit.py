"""Who asks for something, and as whom the broker is asked: what each route depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from .brokers import Broker, Brokers
from .jobs import Jobs
from .masking import Masking
from .rendering import Renderer
from .settings import WebSettings


@dataclass(frozen=True)
class Site:
    """What all visits of a page share."""

    settings: WebSettings
    brokers: Brokers
    renderer: Renderer
    masking: Masking
    jobs: Jobs


@dataclass(frozen=True)
class Visit:
    """One request of somebody.

    Attributes:
        user: the name of the broker's user; empty if there are no logins.
        broker: the broker, as this user sees it.
    """

    request: Request
    site: Site
    user: str
    broker: Broker


def visit_of(request: Request) -> Visit:
    """The visit that a request belongs to."""
    site: Site = request.app.state.site
    return Visit(request, site, "", site.brokers.of(""))


AVisit = Annotated[Visit, Depends(visit_of)]
