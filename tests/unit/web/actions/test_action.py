"""Parameters of actions, as forms send them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kombu_opendata.web.actions.action import MAX_ELEMENTS, Parameters
from kombu_opendata.web.actions.failure_actions import ArchiveFailedAction, OnFailures
from kombu_opendata.web.actions.message_actions import MoveAction, ReleaseAction


@pytest.mark.parametrize(
    ("parameters", "more"),
    [
        (MoveAction, {"target": "b"}),
        (ReleaseAction, {}),
        (ArchiveFailedAction, {}),
        (OnFailures, None),
    ],
)
def test_a_text_of_many_words_makes_a_list_with_a_limit(
    parameters: type[Parameters], more: dict[str, Any] | None
) -> None:
    given = {"ids": "17, " * 20_000} | ({} if more is None else {"queue": "a"} | more)
    with pytest.raises(ValidationError) as refused:
        parameters.model_validate(given)
    (problem,) = refused.value.errors()
    assert (problem["type"], problem["ctx"]["actual_length"]) == ("too_long", MAX_ELEMENTS + 1)
