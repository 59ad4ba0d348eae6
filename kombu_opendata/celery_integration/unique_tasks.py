"""Unique tasks: ``@app.task(unique=Unique(...))``.

Python calls ``__set_name__`` of an attribute when its class is created. Celery creates a class for each task, with the
options of the decorator as attributes, so :class:`Unique` extends ``apply_async`` of that class: the message gets the
header that names its key, and if another task holds the key, the result gets the id of that task. Neither a setting nor
a base class is needed, and ``delay``, signatures, beat and retries use ``apply_async``.

The broker's confirmation has the id of the holder. Celery does not pass it on, so the transport passes it to the
function in :data:`.unique_conflict`. Within a batch, and from asyncio, this is after ``apply_async`` has returned:
therefore the id of the same result object changes.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any

import msgspec

from ..client.published_task import unique_conflict
from ..errors import RequestError
from ..protocol.unique_key import DEFAULTS, HEADER, OnConflict, on_conflict_of, until_ms_of

_encode = msgspec.json.Encoder(order="deterministic").encode
#: characters of a task's name in a key, before the hash
_NAME_CHARACTERS = 60


@dataclass(frozen=True)
class Unique:
    """Option ``unique`` of a task: at most one of the tasks with equal values of ``by`` waits or runs.

    Args:
        by: ``"task"`` (the name), ``"args"`` (all arguments, with their defaults), or names of parameters.
        until: ``"done"``; ``"started"``, which is when a worker receives it; or seconds from the publish.
        on_conflict: ``"return"`` the result of the task that holds the key; ``"replace"`` it if it still waits; or
            raise the ``"error"`` UniqueViolation.

    Raises:
        InvalidMessage: an argument has another value.
    """

    by: tuple[str, ...] = ("task", "args")
    until: str | float = "done"
    on_conflict: str = "return"

    def __post_init__(self) -> None:
        names: Any = self.by
        if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
            raise RequestError(f"by of a unique task must be a tuple of names, not {self.by!r}", argument="by")
        until_ms_of(self.until)
        on_conflict_of(self.on_conflict)

    def __set_name__(self, owner: Any, name: str) -> None:
        owner.apply_async = _extended(owner.apply_async, name)

    def key(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the key of a task with these arguments.

        Raises:
            RequestError: there is no such parameter, or msgspec can't encode the value of an argument as JSON.
        """
        values: list[Any] = []
        arguments = None
        for name in self.by:
            if name == "task":
                values.append(task.name)
                continue
            if arguments is None:
                arguments = _arguments(task.run, args, kwargs)
            if name != "args" and name not in arguments:
                raise RequestError(f"unique task {task.name}: it has no parameter {name!r}", name=name)
            values.append(arguments if name == "args" else arguments[name])
        try:
            encoded = _encode(values)
        except (TypeError, ValueError, RecursionError) as exc:
            text = f"unique task {task.name}: no key for these arguments ({exc}): name plain parameters in 'by'"
            raise RequestError(text, name=task.name) from exc
        digest = hashlib.blake2b(encoded, digest_size=16).hexdigest()
        return f"{task.name[-_NAME_CHARACTERS:] if 'task' in self.by else ''}:{digest}"


def _arguments(run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    signature, names, defaults = _parameters(run)
    if names and len(args) <= len(names):  # as below, ten times as fast
        arguments = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        if arguments.keys() == set(names) and kwargs.keys().isdisjoint(names[: len(args)]):
            return arguments
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


@lru_cache(maxsize=4096)
def _parameters(run: Callable[..., Any]) -> tuple[inspect.Signature, tuple[str, ...], dict[str, Any]]:
    """Return the signature, the names and the defaults; no names if there are parameters of other kinds."""
    signature = inspect.signature(run)
    parameters = signature.parameters.values()
    if any(parameter.kind is not parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        return signature, (), {}
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    return signature, tuple(signature.parameters), defaults


class _Published:
    """Result of a unique task, which gets the id of the task that holds its key."""

    def __init__(self) -> None:
        self._holder = ""
        self._result: Any = None

    def conflict(self, holder: str) -> None:
        self._holder = holder
        if self._result is not None and holder:
            self._result.id = holder

    def finish(self, result: Any) -> Any:
        self._result = result
        if self._holder:
            result.id = self._holder
        return result


def _extended(publish: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return ``apply_async`` with the key that the attribute ``name`` of its task defines.

    The result of a member of a workflow is promised before the member is published, and its callbacks must run. So such
    a task is never dropped: if its key is held, it is stored without the key. Celery freezes the signatures of a
    workflow, which sets ``reply_to``.
    """

    @wraps(publish)
    def apply_async(
        task: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        unique, headers = getattr(task, name), options.get("headers") or {}
        if unique is not None and HEADER not in headers and not options.get("retries"):
            mode = OnConflict.KEEP.name.lower() if link or "reply_to" in options else unique.on_conflict
            key: Any = unique.key(task, args or (), kwargs or {})
            if (unique.until, mode) != DEFAULTS:
                key = {"key": key, "until": unique.until, "on_conflict": mode}
            options["headers"] = headers = {**headers, HEADER: key}
        published = _Published()
        token = unique_conflict.set(published.conflict if HEADER in headers else None)
        try:
            result = publish(task, args, kwargs, task_id, producer, link, link_error, shadow, **options)
        finally:
            unique_conflict.reset(token)
        return published.finish(result)

    return apply_async
