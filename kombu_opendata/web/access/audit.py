"""Audit log of the web UI: a line for each action, login and logout, without secrets and contents of messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

NAME = "kombu_opendata.web.audit"
#: parameters that name the object of an action; other parameters may have contents
_OBJECTS = ("queue", "queues", "exchange", "routing_key", "target", "worker", "ids", "state")
_SHOWN = 200

log = logging.getLogger(NAME)


def record(user: str, address: str, text: str, *args: object, is_bad: bool = False) -> None:
    """Log an action of a user; ``text`` describes it, as in "logged in"."""
    actor = f"user {user[:_SHOWN]!r}" if user else "anonymous"
    log.log(logging.WARNING if is_bad else logging.INFO, "%s (from %s) " + text, actor, address, *args)


def subject(parameters: Mapping[str, Any]) -> str:
    """Return the object of an action, as in " on queue 'billing'"."""
    objects = ", ".join(f"{name} {str(parameters[name])[:_SHOWN]!r}" for name in _OBJECTS if parameters.get(name))
    return f" on {objects}" if objects else ""
