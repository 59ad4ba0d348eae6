"""Exit codes of commands, and errors as one line on stderr.

====  ==================================================================================================
code  meaning
====  ==================================================================================================
0     success
1     the answer is no, something was not found, the request was refused, or a bulk command handled no message
2     the command line is wrong (an option, a URL, a filter, a time), or --yes is needed
3     no broker runs, it can't be reached or started, or the connection was lost
4     the store is damaged, or some messages can't be read
5     not now, or not completely: a full disk or queue, a paused queue, a timeout, or messages that were left
6     the broker ended because another one has taken over its store
7     the job has ended, and some of its tasks did not succeed
130   interrupted by Ctrl-C
====  ==================================================================================================
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

REFUSED, USAGE, NO_BROKER, DAMAGED, NOT_NOW, REPLACED, NOT_SUCCEEDED, INTERRUPTED = 1, 2, 3, 4, 5, 6, 7, 130

_EXIT_CODES = (
    "Exit codes: 0 success; 1 the answer is no, not found, or refused; 2 wrong usage; 3 no broker, or connection lost; "
    "4 the store is damaged; 5 not now, or not completely; 6 another broker has taken over the store; "
    "7 tasks of a job did not succeed."
)


#: settings of a root command, which the commands below inherit
HELP = {"help_option_names": ["-h", "--help"]}


class CommandError(click.ClickException):
    """Error of a command, shown as one line; an invalid filter is shown with the position of the mistake."""

    def __init__(self, text: str, exit_code: int = REFUSED) -> None:
        super().__init__(text)
        self.exit_code = exit_code  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        from ..readable_text import shown_lines

        click.echo(f"Error: {shown_lines(self.message)}", file=file, err=file is None)


def exit_code(error: Exception) -> int:
    """Return the exit code for an error."""
    from .. import errors as e

    codes: tuple[tuple[Any, int], ...] = (  # the first that matches
        ((e.InvalidConfiguration, e.InvalidURL), USAGE),
        ((e.SelectorError, e.InvalidFilter, e.LimitOutOfRange, e.CursorError), USAGE),
        (e.CorruptRecord, DAMAGED),
        (e.StoreFenced, REPLACED),
        ((e.RetryLater, e.StoreChanged, TimeoutError), NOT_NOW),
        ((e.UnsupportedFormat, e.InvalidUsersFile), REFUSED),
        ((e.ConnectionLost, e.StartError, e.VersionMismatch), NO_BROKER),
    )
    return next((code for kinds, code in codes if isinstance(error, kinds)), REFUSED)


def failure(error: Exception) -> CommandError | None:
    """Return the command's error for an expected error; None for any other, which is shown with its traceback."""
    from ..errors import OpenDataError

    if isinstance(error, OpenDataError):
        text = error.text
        place = str(error.values.get("caret", ""))
        return CommandError(text if not place or place in text else f"{text}\n{place}", exit_code(error))
    if isinstance(error, TimeoutError):
        return CommandError("no answer in time; the broker continues what it began", NOT_NOW)
    if isinstance(error, OSError) and error.errno != errno.EPIPE:
        return CommandError(f"{error.filename or 'the system'}: {error.strerror or error}")
    return None


@contextmanager
def _interruptible() -> Iterator[None]:
    """End the command on Ctrl-C with its own exit code, even at a prompt, where click turns it into an Abort."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort) as exc:
        if isinstance(exc, click.Abort) and not isinstance(exc.__context__, KeyboardInterrupt):
            raise
        click.echo("interrupted", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None


class Command(click.Command):
    """Command that prints an expected error as one line. Its ``epilog`` is ``Example: `` and a command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _interruptible():  # click may prompt for missing options
            return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        heading, _, example = (self.epilog or "").partition(": ")
        if example:
            with formatter.section(heading):
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")  # never folded, so it can be copied
        _write_exit_codes(formatter)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _interruptible():
                result = super().invoke(ctx)
                sys.stdout.flush()  # detects a closed pipe here and not when the interpreter ends
                return result
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as exc:
            command_error = failure(exc)
            if command_error is None:
                raise
            raise command_error from exc


class CommandGroup(click.Group):
    """Group of such commands."""

    command_class = Command
    group_class = type  # click's convention: subgroups have this class, too

    def invoke(self, ctx: click.Context) -> Any:
        _open_streams()
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_exit_codes(formatter)


def _write_exit_codes(formatter: click.HelpFormatter) -> None:
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(_EXIT_CODES)


def _open_streams() -> None:
    """Replace a standard stream that is closed, for which Python has None, by an empty one."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - stays open as long as the process runs


def missing_ids(ids: Collection[Any], handled: int, limit: int, what: str) -> CommandError | None:
    """Return the error of a bulk command that did not find all of its messages; None if it did.

    Args:
        limit: the maximum number of messages to handle; 0 for no limit.
        what: a description of the messages, for the error.
    """
    expected = min(len(set(ids)), limit or len(ids))
    return CommandError(f"{expected - handled:,} of {expected:,} ids are not {what}") if handled < expected else None


def can_ask() -> bool:
    """Return True if there is a terminal with a user."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def require_confirmation(yes: bool, question: str = "This can't be undone.") -> None:
    """Raise click.UsageError if ``--yes`` was not given and there is no terminal for a question."""
    if not (yes or can_ask()):
        raise click.UsageError(f"{question} There is no terminal to ask on: add --yes to go ahead.")


def confirm(question: str, yes: bool) -> None:
    """Ask the user to confirm an action that can't be undone, unless ``yes`` is set.

    Raises:
        click.UsageError: there is no terminal.
        click.Abort: the answer was no, or Ctrl-C.
    """
    require_confirmation(yes, question)
    if not yes:
        click.confirm(question, abort=True, err=True)
