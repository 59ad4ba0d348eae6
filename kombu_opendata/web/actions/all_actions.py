"""All actions by name, and those that a user may perform."""

from __future__ import annotations

from ...protocol.messages import Identity
from . import broker_actions, exchange_actions, failure_actions, message_actions, queue_actions, worker_actions
from .action import ACTIONS

__all__ = ["ACTIONS", "ALIASES", "is_offered"]

#: former names of actions, which the API accepts until the next version
ALIASES = {"drop-queue": "delete-queue", "dismiss": "delete-failures", "archive": "mark-done"}
_DECLARED_IN = (
    broker_actions, exchange_actions, failure_actions, message_actions, queue_actions, worker_actions,
)  # fmt: skip


def is_offered(action: str, who: Identity | None) -> bool:
    """Return True if the user may perform the action on some object; the broker checks each call again.

    If the broker is unavailable, the user is unknown (None), and every action is offered.
    """
    return who is None or who.may(ACTIONS[action].message.operation.permission)
