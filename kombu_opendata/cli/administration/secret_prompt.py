"""Prompt for a secret. There is no option for it, because other users could see it in the list of processes."""

from __future__ import annotations

import sys

import click

from ..exit_codes import USAGE, CommandError


def read_secret() -> str:
    """Read a secret, from the terminal with confirmation, or from standard input."""
    if sys.stdin.isatty():
        return str(click.prompt("Secret", hide_input=True, confirmation_prompt=True, err=True))
    try:
        secret = sys.stdin.buffer.read().decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as exc:
        raise CommandError("the secret on standard input is not UTF-8", USAGE) from exc
    if "\n" in secret:
        raise CommandError("standard input has more than one line: give the secret alone", USAGE)
    return secret
