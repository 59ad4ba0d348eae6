"""Actions: an operation that an operator can perform, with its form, a preview of its effect, and its execution.

A class declares an action: its fields define the form of the dialog and the body of the API's route. :func:`action`
adds the name, the label, the message that it sends to the broker, and the kind of confirmation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Json

from ...protocol.messages import Identity, WireMessage
from ...queue_client.body_codec import json_elements
from ..user_clients import UserBroker

#: limit for a JSON text or a list in a parameter; each element takes about a hundred bytes of memory
MAX_ELEMENTS = 10_000
#: limit for the messages of an action
MAX_IDS = 1000


def _object(value: Any) -> Any:
    if isinstance(value, str) and json_elements(value.encode("utf-8", "replace"), MAX_ELEMENTS) > MAX_ELEMENTS:
        raise ValueError(f"it may have {MAX_ELEMENTS:,} elements at most")
    return value or {}


def words(value: Any) -> Any:
    """Return the words of a text, as forms send lists; the words above :data:`MAX_ELEMENTS` stay one text."""
    return value.replace(",", " ").split(maxsplit=MAX_ELEMENTS) if isinstance(value, str) else value


#: a JSON object, or its JSON text, which forms send
JsonObject = Annotated[Json[dict[str, Any]] | dict[str, Any], BeforeValidator(_object)]
#: marks a field of several lines
LINES: dict[str, Any] = {"lines": True}
Words = Annotated[list[str], BeforeValidator(words)]
Ids = Annotated[list[int], Field(max_length=MAX_IDS), BeforeValidator(words)]
#: ids of messages, or None for all
SomeIds = Annotated[list[int] | None, Field(max_length=MAX_IDS), BeforeValidator(words)]


def json_field(title: str, description: str) -> Any:
    """Return a field with a JSON object, which a form shows with several lines."""
    return Field(default_factory=dict, title=title, description=description, json_schema_extra=LINES)


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


class Parameters(BaseModel):
    """An action with its parameters; ``effect`` is a sentence with names of parameters in braces."""

    model_config = ConfigDict(extra="forbid", str_max_length=1 << 20)
    effect: ClassVar[str]

    async def preview(self, broker: UserBroker) -> Preview:
        """Return the effect, without changing anything."""
        if [] in (getattr(self, "ids", None), getattr(self, "selected", None)):
            return Preview("Nothing is selected.", 0, is_possible=False)
        return await self.effect_on(broker)

    async def effect_on(self, broker: UserBroker) -> Preview:
        """Return the effect on objects of the broker, if any are selected."""
        return Preview(self.effect.format_map(dict(self)))

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        """Execute the action."""
        raise NotImplementedError

    async def perform_in_steps(self, broker: UserBroker, report: Report) -> ActionOutcome:
        """Execute the action; one with several steps reports its progress."""
        return await self.perform(broker)


P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True)
class Action:
    """The declaration of an action.

    Attributes:
        name: its name in addresses.
        title: the title of its dialog and the label of its button.
        message: the message that it sends; users who may send it see the button.
        fixed: parameters that the button sets; the dialog does not show them.
        typed: the parameter whose value must be typed again, as the action can't be undone.
        is_dangerous: True if its button is red.
        is_long: True if it runs in the background.
    """

    name: str
    title: str
    message: type[WireMessage]
    parameters: type[Parameters]
    fixed: frozenset[str]
    typed: str
    is_dangerous: bool
    is_long: bool


#: all actions by name
ACTIONS: dict[str, Action] = {}


def is_offered(action: str, who: Identity | None) -> bool:
    """Return True if the user may perform the action on some object; the broker checks each call again.

    If the broker is unavailable, the user is unknown (None), and every action is offered.
    """
    return who is None or who.may(ACTIONS[action].message.operation.permission)


def action(
    name: str,
    title: str,
    message: type[WireMessage],
    fixed: str = "",
    *,
    typed: str = "",
    is_dangerous: bool = False,
    is_long: bool = False,
) -> Callable[[type[P]], type[P]]:
    """Declare an action; ``fixed`` has the names of parameters, separated by spaces. See :class:`Action`."""

    def declare(parameters: type[P]) -> type[P]:
        names = frozenset(fixed.split())
        ACTIONS[name] = Action(name, title, message, parameters, names, typed, is_dangerous, is_long)
        return parameters

    return declare
