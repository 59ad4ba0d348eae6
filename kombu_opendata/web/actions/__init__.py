"""Actions of operators: parameters, preview and execution of each, without HTML and HTTP."""

from . import (  # noqa: F401 - they declare the actions
    broker_actions,
    exchange_actions,
    failure_actions,
    job_actions,
    message_actions,
    queue_actions,
    worker_actions,
)
from .action import ACTIONS, is_offered

__all__ = ["ACTIONS", "is_offered"]
