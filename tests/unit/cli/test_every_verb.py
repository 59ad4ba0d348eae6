"""What every verb of ``opendata-queue`` has: an example, JSON, completion, and ``--start`` if it only looks."""

from __future__ import annotations

import shlex

import click
import pytest
from click.testing import CliRunner

from kombu_opendata.cli.hints import START
from kombu_opendata.cli.root import main

from ...support.command_lines import VERBS, parse

#: these run until they are stopped, and return nothing
WITHOUT_JSON = {"broker", "web"}
#: verbs that ask a broker, and change nothing
LOOKERS = {
    "attempts",
    "binding list",
    "done count",
    "done list",
    "broker status",
    "exchange explain",
    "exchange list",
    "exchange show",
    "failed count",
    "failed list",
    "failed show",
    "filter explain",
    "instance list",
    "job list",
    "job show",
    "job wait",
    "message",
    "messages",
    "peek",
    "queue list",
    "queue partitions",
    "queue recent",
    "queue metrics",
    "queue show",
    "queue top",
    "replay",
    "result get",
    "status",
    "task show",
    "user whoami",
    "web",
    "worker list",
    "worker messages",
}
#: verbs about a broker that runs: they would be pointless with one that they start
ABOUT_RUNNING = {"broker hand-over", "broker reload", "broker stop", "ping"}
#: parameters that name what the shell can complete
NAMES = {
    "queue", "queues", "source", "target_queue", "exchange", "alternate_exchange", "worker", "workers", "into",
    "job_id",
}  # fmt: skip

every_verb = pytest.mark.parametrize("verb", sorted(VERBS))


def options(verb: str) -> dict[str | None, click.Parameter]:
    return {parameter.name: parameter for parameter in VERBS[verb].params}


@every_verb
def test_its_help_has_an_example_that_can_be_copied(verb: str) -> None:
    heading, _, example = (VERBS[verb].epilog or "").partition(": ")
    assert heading == "Example"
    words = shlex.split(example.partition(" < ")[0])
    assert words[: 1 + len(verb.split())] == ["opendata-queue", *verb.split()] or verb == "broker status"
    parse(words[1:])
    told = CliRunner().invoke(main, [*verb.split(), "--help"], terminal_width=78)
    assert f"\n  {example}\n" in told.stdout


@every_verb
def test_it_prints_json(verb: str) -> None:
    assert ("as_json" in options(verb)) is (verb not in WITHOUT_JSON)


@every_verb
def test_it_starts_a_broker_to_look_only_if_it_is_told_to(verb: str) -> None:
    assert (START in options(verb)) is (verb in LOOKERS)
    if verb in ABOUT_RUNNING:
        assert START not in options(verb)


@every_verb
def test_names_are_completed(verb: str) -> None:
    for name, parameter in options(verb).items():
        if (
            name in NAMES
            and not verb.startswith(("user ", "store "))
            and verb not in ("queue create", "exchange create")
        ):
            assert parameter._custom_shell_complete is not None, name
