"""Changes of a queue by an operator: validation, and the resulting overrides and arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...errors import RequestError
from ...storage.records.overrides import QueueOverrides
from . import queue_arguments
from .argument_table import BY_NAME
from .name_checks import check_storable
from .queue import BrokerQueue
from .queue_arguments import QueueArguments

#: properties that can't be altered, by the names that users may use for them
_NATURE = frozenset(
    prefix + name for name in ("durable", "exclusive", "auto-delete", "auto_delete", "name") for prefix in ("", "x-")
)


class Wanted(NamedTuple):
    """The requested changes. A value of None acts as if the argument were not declared."""

    arguments: Mapping[str, Any]
    unset: Iterable[str]  # arguments that return to the declared value
    reset: bool  # return all to the declared values before the others are set


class Alteration(NamedTuple):
    """The overrides of a queue after a change, and its arguments then."""

    overrides: QueueOverrides
    effective: dict[str, Any]
    parsed: QueueArguments


def alteration(queue: BrokerQueue, wanted: Wanted) -> Alteration:
    """Check a change of a queue's arguments, without making it.

    Raises:
        RequestError: an argument is unknown or can't be altered, a value is not valid, or values contradict each other.
    """
    unset = set(wanted.unset)
    if both := sorted(unset & wanted.arguments.keys()):
        raise RequestError(f"{both[0]} is both set and unset: choose one", argument=both[0], queue=queue.name)
    if not (wanted.arguments or unset or wanted.reset):
        raise RequestError(f"queue {queue.name!r}: say which arguments to set or unset", queue=queue.name)
    for name in (*wanted.arguments, *sorted(unset)):
        _check_name(queue, name)
    for name, value in wanted.arguments.items():
        if value is not None:
            queue_arguments.check(BY_NAME[name], value, f"queue {queue.name!r}", queue=queue.name)
    before = {} if wanted.reset else queue.overrides.arguments
    remaining = {name: value for name, value in before.items() if name not in unset}
    overrides = queue.overrides._replace(arguments={**remaining, **wanted.arguments})
    check_storable(dict(overrides.arguments), f"queue {queue.name!r}")
    effective = overrides.over(queue.properties.arguments)
    valid = queue_arguments.valid(effective)  # an older version may have accepted other values
    return Alteration(overrides, effective, queue_arguments.parse(queue.name, valid))


def _check_name(queue: BrokerQueue, name: str) -> None:
    """Refuse an argument that can't be altered."""
    about: dict[str, Any] = {"argument": name, "queue": queue.name}
    if name in _NATURE:
        raise RequestError(
            f"queue {queue.name!r}: {name!r} is the queue's nature and can't be altered: create another queue, and "
            "move the messages there",
            **about,
        )
    argument = BY_NAME.get(name)
    if argument is None:
        warnings = queue_arguments.unknown("queue", queue.name, [name])
        raise RequestError(warnings[0] if warnings else f"queue {queue.name!r}: there is no argument {name!r}", **about)
    if argument.cannot_alter:
        raise RequestError(f"queue {queue.name!r}: {name} can't be altered: {argument.cannot_alter}", **about)
    if argument.stored_only and not queue.properties.stored:
        raise RequestError(
            f"queue {queue.name!r}: {name} has no effect on a queue that is not stored (it is not durable, or "
            "exclusive, or auto-delete)",
            **about,
        )
