"""All actions by name."""

from __future__ import annotations

from typing import Any

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
