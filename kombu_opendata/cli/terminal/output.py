"""Output of commands: lines for people, JSON for machines.

Names and bodies are untrusted. For people, characters that a terminal could interpret as a command, or that change the
direction of the text, are shown as escapes; JSON is pure ASCII. Times are local with their zone for people, ISO 8601 in
UTC in JSON. There are no colours unless stdout is a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ...json_values import plain
from ...readable_text import counted, number, shown


def local(at: datetime | None) -> str:
    """Format a time in the user's zone, with the offset."""
    return "" if at is None else at.astimezone().isoformat(" ", "seconds")


def print_json(value: Any) -> None:
    """Print one document."""
    print(json.dumps(plain(value), indent=2, default=str))


def print_json_line(value: Any) -> None:
    """Print a document on a single line."""
    print(json.dumps(plain(value), default=str))


def print_facts(facts: Mapping[str, Any], *, title: str = "") -> None:
    """Print names and values, one pair a line."""
    width = max(map(len, facts), default=0)
    if title:
        say(title)
    for name, value in facts.items():
        text = local(value) if isinstance(value, datetime) else "" if value is None else value
        shown_value = number(text) if type(text) is int and not name.endswith("id") else shown(text)
        say(f"{name:<{width}}  {shown_value}".rstrip())


def say(text: str) -> None:
    """Print a line on stdout, made safe for terminals."""
    never_fail_on_a_character()
    print(shown(text))


def note(text: str) -> None:
    """Print a line for people on stderr: stdout has only the requested output."""
    print(shown(text), file=sys.stderr)


def note_hidden(queues: int) -> None:
    """Print the number of Celery's queues that a table leaves out."""
    if queues:
        note(f"without {counted(queues, 'queue')} of Celery for events and remote control: --all")


def never_fail_on_a_character() -> None:
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
