"""docs/cli.md has every group of verbs and every exit code, and pages name only commands that there are."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kombu_opendata.broker.standby.active_role import EXIT_FENCED
from kombu_opendata.cli import exit_codes
from kombu_opendata.cli.root import main

from ..support.command_lines import VERBS, parse

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text()
EXAMPLES = re.findall(r"`(opendata-queue [^`]+)`", PAGE.split("## Completion")[0])
COMMANDS = re.compile(r"(?m)^ *(?:[$#] )?(?:runuser -u \S+ -- )?(opendata-queue [^<|&…\\\n]+)$")
SPANS = re.compile(r"`(opendata-queue [^`…]+)`")


def test_the_page_has_every_group_and_verb_without_one() -> None:
    table = PAGE.split("## Verbs")[1].split("\n* ")[0]
    shown = {words.split()[0] for words in re.findall(r"`([a-z -]+)`", table)}
    assert {verb.split()[0] for verb in VERBS} <= shown


def test_every_example_is_understood() -> None:
    for example in EXAMPLES:
        parse(shlex.split(example)[1:])


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_other_pages_name_only_commands_that_there_are(page: Path) -> None:
    text = page.read_text()
    for example in COMMANDS.findall(text):
        parse(shlex.split(example)[1:])
    for span in SPANS.findall(text):
        words = shlex.split(span)[1:]
        with contextlib.suppress(click.MissingParameter):  # prose may name a verb without what it needs
            if words[1:] or words[0] not in main.commands:
                parse(words)


def test_the_exit_codes_are_those_of_the_code() -> None:
    shown = {int(code) for code in re.findall(r"(?m)^\| (\d+) \|", PAGE)}
    codes = {exit_codes.REFUSED, exit_codes.USAGE, exit_codes.NO_BROKER, exit_codes.DAMAGED, exit_codes.NOT_NOW}
    assert shown == codes | {0, exit_codes.REPLACED, exit_codes.NOT_SUCCEEDED, exit_codes.INTERRUPTED}
    assert exit_codes.REPLACED == EXIT_FENCED
    assert exit_codes.__doc__ is not None
    assert shown == {int(code) for code in re.findall(r"(?m)^(\d+) ", exit_codes.__doc__)}


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_and_option_explains_itself(verb: str) -> None:
    command = VERBS[verb]
    assert command.help
    told = CliRunner().invoke(main, [*verb.split(), "--help"], terminal_width=78)
    assert "6 another broker has taken over" in " ".join(told.stdout.split())
    assert not re.search(r"\bx[<>]|<=x", told.stdout), "bounds are said in words"
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            choice = isinstance(parameter.type, click.Choice)
            assert parameter.help or choice, f"{verb} {parameter.opts[0]}"


@pytest.mark.parametrize("group", ["", *sorted({verb.split()[0] for verb in VERBS if " " in verb} - {"broker"})])
def test_a_list_of_commands_says_each_in_whole_words(group: str) -> None:
    words = ([group] if group else []) + ["--help"]
    told = CliRunner().invoke(main, words, terminal_width=78)  # what click uses of a terminal of 80
    assert told.exit_code == 0
    assert "..." not in told.output.split("Commands:")[1]
