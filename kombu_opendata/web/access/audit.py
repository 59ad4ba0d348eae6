"""The page's audit log: a line for each action, login and logout. No line has a secret or the contents of a message."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

NAME = "kombu_opendata.web.audit"
#: parameters that say on what; others may have contents
_SAID = ("queue", "queues", "exchange", "routing_key", "target", "worker", "name", "ids", "id", "state", "fingerprints")
_SHOWN = 200

log = logging.getLogger(NAME)


def noted(user: str, address: str, text: str, *args: object, is_bad: bool = False) -> None:
    """Note what a user did; ``text`` says what, as in "logged in"."""
    who = f"user {user[:_SHOWN]!r}" if user else "anonymous"
    log.log(logging.WARNING if is_bad else logging.INFO, "%s (from %s) " + text, who, address, *args)


def subject(parameters: Mapping[str, Any]) -> str:
    """On what something is done."""
    said = ", ".join(f"{name} {str(parameters[name])[:_SHOWN]!r}" for name in _SAID if parameters.get(name))
    return f" on {said}" if said else ""
