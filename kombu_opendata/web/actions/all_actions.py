"""All actions by name, and those that a user may perform."""

from __future__ import annotations

from typing import Any

from ...protocol.messages import Identity
from . import (
    broker_actions,
    exchange_actions,
    failure_actions,
    message_actions,
    queue_actions,
    replay_actions,
    store_actions,
    worker_actions,
)
from .action import Action

_GROUPS = (
    queue_actions, message_actions, failure_actions, replay_actions, exchange_actions, worker_actions, broker_actions,
    store_actions,
)  # fmt: skip
ACTIONS: dict[str, Action[Any]] = {action.name: action for group in _GROUPS for action in group.ACTIONS}


def is_offered(action: str, who: Identity | None) -> bool:
    """Return True if the user may perform the action on some object; the broker checks each call independently.

    True also if the user is unknown, as the broker is unavailable.
    """
    return who is None or who.may(ACTIONS[action].message.operation.permission)
