"""An action: its parameters, a preview that says what it would concern, and the deed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Json

from ...queue_client.bodies import json_elements
from ..brokers import UserBroker

#: of a JSON text in a parameter; each takes about a hundred bytes of memory
MAX_ELEMENTS = 10_000


def _limited(value: Any) -> Any:
    if isinstance(value, str) and json_elements(value.encode("utf-8", "replace"), MAX_ELEMENTS) > MAX_ELEMENTS:
        raise ValueError(f"it may have {MAX_ELEMENTS:,} elements at most")
    return value


#: a JSON object, or the JSON text of one, as forms have it
JsonObject = Annotated[Json[dict[str, Any]] | dict[str, Any], BeforeValidator(_limited)]


class Parameters(BaseModel):
    """The parameters of an action, which are the fields of its dialog and the body of its API call."""

    model_config = ConfigDict(extra="forbid", str_max_length=1 << 20)


P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True)
class Preview:
    """What an action would concern.

    Attributes:
        text: a sentence, with the number.
        count: how many messages (or workers, bindings, …); None if that is not known before.
        notes: more sentences, such as what a change means for messages that wait.
        is_possible: False if there is nothing left that it could concern.
    """

    text: str
    count: int | None = None
    notes: tuple[str, ...] = ()
    is_possible: bool = True


@dataclass(frozen=True)
class ActionOutcome:
    """What an action did.

    Attributes:
        text: a sentence, with the number.
        counts: the numbers by name.
        path, query: where to look next, below the page's root.
    """

    text: str
    counts: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    query: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ActionProgress:
    """How far an action is: of ``total``, if that is known."""

    done: int
    total: int | None = None


Report = Callable[[ActionProgress], None]


def unheard(_progress: ActionProgress) -> None:
    """For an action whose progress nobody follows."""


@dataclass(frozen=True)
class Action(Generic[P]):
    """Something that an operator can do.

    Attributes:
        name: in addresses.
        title: of its dialog, and what its button says.
        parameters: their class.
        preview: what it would concern; nothing is changed.
        perform: does it. It gets a function that takes its progress.
        given: parameters that the button gives, so the dialog shows and does not ask for them.
        typed: the parameter whose value must be typed again, as what is done can't be undone.
        is_dangerous: its button is red.
        is_long: it may take long, so the page does it in the background.
    """

    name: str
    title: str
    parameters: type[P]
    preview: Callable[[UserBroker, P], Awaitable[Preview]]
    perform: Callable[[UserBroker, P, Report], Awaitable[ActionOutcome]]
    given: frozenset[str] = frozenset()
    typed: str = ""
    is_dangerous: bool = False
    is_long: bool = False


def counted(count: int, one: str, many: str = "") -> str:
    """``1 message``, ``2 messages``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
