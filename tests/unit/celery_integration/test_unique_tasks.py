"""Keys of unique tasks, the header that names them, and results whose key another task holds."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kombu_opendata.celery_integration.unique_tasks import Unique
from kombu_opendata.client.published_task import unique_conflict
from kombu_opendata.errors import InvalidMessage, RequestError
from kombu_opendata.protocol.unique_key import HEADER


class Publisher:
    """A task's class, as Celery creates it.

    Attributes:
        holder: the id of the task that holds each key, or an empty text.
        confirms_late: set for confirmations after the publish, as in a batch: the test calls ``late``.
        sent: the keys of the messages.
    """

    name = "tasks.add"
    holder = ""
    confirms_late = False

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.late: Callable[[str], object] | None = None

    def run(self, x: Any, y: Any = 2) -> Any:
        return x + y

    def apply_async(
        self,
        args: Any,
        kwargs: Any,
        task_id: Any,
        producer: Any,
        link: Any,
        link_error: Any,
        shadow: Any,
        **options: Any,
    ) -> SimpleNamespace:
        self.sent.append((options.get("headers") or {}).get(HEADER))
        conflict = unique_conflict.get()
        if self.confirms_late:
            self.late = conflict
        elif conflict is not None:
            conflict(self.holder)
        return SimpleNamespace(id=task_id)


def task_of(unique: Unique, **attributes: Any) -> Any:
    created = type("add", (Publisher,), {"unique": unique, **attributes})
    return created()


def test_the_same_arguments_have_the_same_key() -> None:
    task = task_of(Unique())
    for args, kwargs in (((1,), {}), ((1, 2), {}), ((), {"x": 1}), ((1,), {"y": 2}), ((), {"y": 2, "x": 1})):
        task.apply_async(args, kwargs)
    assert len(set(task.sent)) == 1
    assert task.sent[0].startswith("tasks.add:")
    task.apply_async((2,))
    assert task.sent[-1] != task.sent[0]
    assert unique_conflict.get() is None


def test_arguments_that_the_function_does_not_take_are_refused() -> None:
    task = task_of(Unique())
    for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"z": 1})):
        with pytest.raises(TypeError):
            task.apply_async(args, kwargs)
    assert task.sent == []


def test_parameters_of_other_kinds() -> None:
    def run(self: Any, *numbers: int, **options: int) -> None: ...

    task = task_of(Unique(), run=run)
    for args, kwargs in (((1, 2), {"a": 1, "b": 2}), ((1, 2), {"b": 2, "a": 1}), ((2, 1), {"a": 1, "b": 2})):
        task.apply_async(args, kwargs)
    assert task.sent[0] == task.sent[1] != task.sent[2]


def test_a_key_of_some_parameters() -> None:
    task = task_of(Unique(by=("y",)))
    for args in ((1,), (3, 2), (1, 4)):
        task.apply_async(args)
    assert task.sent[0] == task.sent[1] != task.sent[2]
    assert task.sent[0].startswith(":"), "tasks of other names share it"
    with pytest.raises(RequestError, match="it has no parameter 'z'"):
        task_of(Unique(by=("z",))).apply_async((1,))


@pytest.mark.parametrize("value", [object(), {(1, 2): object()}, uuid], ids=["object", "mapping", "module"])
def test_arguments_without_a_key_are_refused(value: Any) -> None:
    task = task_of(Unique())
    with pytest.raises(RequestError, match="name plain parameters in 'by'"):
        task.apply_async((value,))
    assert task.sent == []
    assert unique_conflict.get() is None


@pytest.mark.parametrize(
    ("unique", "options", "expected"),
    [
        (Unique(until=60), {}, {"until": 60, "on_conflict": "return"}),
        (Unique(on_conflict="replace"), {}, {"until": "done", "on_conflict": "replace"}),
        (Unique(on_conflict="error"), {"link": "a callback"}, {"until": "done", "on_conflict": "keep"}),
        (Unique(), {"reply_to": "a workflow"}, {"until": "done", "on_conflict": "keep"}),
    ],
)
def test_the_header_has_what_is_not_the_default(unique: Unique, options: Any, expected: Any) -> None:
    task = task_of(unique)
    task.apply_async((1,), **options)
    (header,) = task.sent
    assert header.pop("key").startswith("tasks.add:")
    assert header == expected


def test_a_retry_a_given_key_and_a_task_that_is_not_unique() -> None:
    task = task_of(Unique())
    task.apply_async((1,), retries=1)
    task.apply_async((1,), headers={HEADER: "given"})
    task.unique = None
    task.apply_async((1,))
    assert task.sent == [None, "given", None]


@pytest.mark.parametrize("confirms_late", [False, True])
def test_the_result_has_the_id_of_the_holder(confirms_late: bool) -> None:
    task = task_of(Unique(), holder="first", confirms_late=confirms_late)
    result = task.apply_async((1,), task_id="second")
    if confirms_late:
        assert result.id == "second"
        task.late("")
        assert result.id == "second"
        task.late("first")
    assert result.id == "first"


@pytest.mark.parametrize("by", ["task", (), (1,)])
def test_by_is_a_tuple_of_names(by: Any) -> None:
    with pytest.raises(RequestError, match="by of a unique task must be a tuple of names"):
        Unique(by=by)


@pytest.mark.parametrize("options", [{"until": "soon"}, {"until": -1}, {"on_conflict": "drop"}])
def test_other_values_are_refused(options: Any) -> None:
    with pytest.raises(InvalidMessage):
        Unique(**options)
