"""Action: its parameters, a preview of its effect, and its execution."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Json

from ...protocol.messages import WireMessage
from ...queue_client.bodies import json_elements
from ..brokers import UserBroker

#: limit for a JSON text or a list in a parameter; each element takes about a hundred bytes of memory
MAX_ELEMENTS = 10_000


def _limited(value: Any) -> Any:
    if isinstance(value, str) and json_elements(value.encode("utf-8", "replace"), MAX_ELEMENTS) > MAX_ELEMENTS:
        raise ValueError(f"it may have {MAX_ELEMENTS:,} elements at most")
    return value


#: a JSON object, or its JSON text, which forms send
JsonObject = Annotated[Json[dict[str, Any]] | dict[str, Any], BeforeValidator(_limited)]


def words(value: Any) -> Any:
    """Return the words of a text, which is how forms send a list; words above :data:`MAX_ELEMENTS` stay one text."""
    return value.replace(",", " ").split(maxsplit=MAX_ELEMENTS) if isinstance(value, str) else value


class Parameters(BaseModel):
    """The parameters of an action, which are the fields of its dialog and the body of its API call."""

    model_config = ConfigDict(extra="forbid", str_max_length=1 << 20)


P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True)
class Preview:
    """The effect that an action would have.

    Attributes:
        text: a sentence that includes the count.
        count: the number of messages (or workers, bindings, …); None if unknown in advance.
        notes: further sentences, such as the effect of a change on ready messages.
        is_possible: False if there is nothing left to act on.
    """

    text: str
    count: int | None = None
    notes: tuple[str, ...] = ()
    is_possible: bool = True


@dataclass(frozen=True)
class ActionOutcome:
    """The result of an action.

    Attributes:
        text: a sentence that includes the number.
        counts: the numbers by name.
        path, query: the view to open next, below the root path.
    """

    text: str
    counts: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    query: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ActionProgress:
    """Progress of an action: ``done`` of ``total``, if the total is known."""

    done: int
    total: int | None = None


Report = Callable[[ActionProgress], None]


def unheard(_progress: ActionProgress) -> None:
    """Ignore progress; for callers that do not report it."""


@dataclass(frozen=True)
class Action(Generic[P]):
    """An operation that an operator can perform.

    Attributes:
        name: its name in addresses.
        title: the title of its dialog and the label of its button.
        message: the message of the call that it makes; who may send it sees the button.
        parameters: the class of its parameters.
        preview: returns its effect without changing anything.
        perform: executes it and reports progress to the given function.
        given: parameters that the button sets; the dialog shows them read-only.
        typed: the parameter whose value must be typed again, as the action can't be undone.
        is_dangerous: True if its button is red.
        is_long: True if it may take long and so runs in the background.
    """

    name: str
    title: str
    message: type[WireMessage]
    parameters: type[P]
    preview: Callable[[UserBroker, P], Awaitable[Preview]]
    perform: Callable[[UserBroker, P, Report], Awaitable[ActionOutcome]]
    given: frozenset[str] = frozenset()
    typed: str = ""
    is_dangerous: bool = False
    is_long: bool = False


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun, as in ``1 message`` or ``2 messages``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
