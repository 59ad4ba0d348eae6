"""Texts of errors: sentences about parameters, and statuses that the API's description has."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kombu_opendata.errors import BY_CODE
from kombu_opendata.web.actions import ACTIONS
from kombu_opendata.web.app import api_description
from kombu_opendata.web.error_reports import BODY_RESPONSES, RESPONSES, fault_of, invalid
from kombu_opendata.web.views.forms import faults_of


@pytest.mark.parametrize(
    ("action", "given", "expected"),
    [
        ("send", {"queue": ""}, ["Body is missing.", "Queue is missing."]),
        ("send", {"queue": "q", "body": "", "priority": "x"}, ["Priority must be a whole number."]),
        ("send", {"queue": "q", "body": "", "priority": "256"}, ["Priority must be at most 255."]),
        ("send", {"queue": "q", "body": "", "delay": "-1"}, ["Delay in seconds must be at least 0."]),
        ("send", {"queue": "q", "body": "", "delay": "x"}, ["Delay in seconds must be a number."]),
        ("send", {"queue": "q", "body": "x" * (2 << 20)}, ["Body may have at most 1,048,576 characters."]),
        ("release", {"queue": "q", "ids": []}, ["Messages is missing."]),
        ("release", {"queue": "q", "ids": ["1"] * 1001}, ["Messages may have at most 1,000 entries."]),
    ],
)  # fmt: skip
def test_a_form_names_its_fields_as_they_are_labelled(action: str, given: dict[str, Any], expected: list[str]) -> None:
    parameters = ACTIONS[action].parameters
    with pytest.raises(ValidationError) as caught:
        parameters.model_validate(given)
    assert faults_of(parameters, caught.value) == expected


def test_no_form_has_a_field_without_a_label_or_a_sentence_of_pydantic() -> None:
    for action in ACTIONS.values():
        for name, field in action.parameters.model_fields.items():
            assert field.title, (action.name, name)
        everything_wrong = {name: object() for name in action.parameters.model_fields}
        for given in ({}, everything_wrong):
            try:
                action.parameters.model_validate(given)
            except ValidationError as exc:
                for text in faults_of(action.parameters, exc):
                    assert text.endswith(".")
                    assert "Field required" not in text


def test_an_address_that_lacks_a_parameter() -> None:
    problems: list[dict[str, Any]] = [
        {"type": "missing", "loc": ("query", "id"), "msg": "Field required"},
        {"type": "int_parsing", "loc": ("body", "ids", 3), "msg": "Input should be a valid integer"},
    ]
    fault = invalid(problems)
    assert fault.message == "The parameter id is missing. ids.3 must be a whole number."
    assert fault.values["problems"][0] == {"where": ["query", "id"], "message": "Field required"}


def test_each_error_of_the_broker_has_a_status_that_is_described() -> None:
    statuses = {fault_of(error("text")).status for error in BY_CODE.values()}
    assert statuses <= {*RESPONSES, *BODY_RESPONSES}
    assert {401, 403, 404, 409, 422, 429, 500, 502, 503} <= RESPONSES.keys()


def test_each_call_describes_the_statuses_that_it_answers() -> None:
    for path, ways in api_description()["paths"].items():
        for method, call in ways.items():
            described = set(map(int, call["responses"])) - {200}
            expected = {*RESPONSES}
            if method == "post":
                expected |= {*BODY_RESPONSES} if "requestBody" in call else {413}
            assert described == expected, (method, path)
