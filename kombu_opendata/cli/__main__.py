"""Entry point ``python -m kombu_opendata.cli``, with which a client starts a folder's broker."""

from __future__ import annotations

import json
import os
import sys


def main() -> int:
    """Run a command; an embedded broker is detached first, so that the client need not wait for its end."""
    if "--embedded" in sys.argv and os.fork() != 0:
        os._exit(0)
    try:
        import click

        from ..broker.process import process  # noqa: F401 - a broken installation fails here
        from .root import main as cli
    except Exception as exc:
        _report(f"the broker can't be loaded: {exc!r}; see its log")
        raise

    try:
        return int(cli(sys.argv[1:], standalone_mode=False) or 0)
    except click.ClickException as exc:
        if isinstance(exc, click.UsageError):  # the command has reported any other error
            _report(f"the broker's options are wrong: {exc.format_message()}")
        exc.show()
        return exc.exit_code


def _report(text: str) -> None:
    """Report to the client that started this process that the broker can't start, and another attempt would fail."""
    if "--ready-fd" in sys.argv:
        fd = int(sys.argv[sys.argv.index("--ready-fd") + 1])
        os.write(fd, json.dumps({"code": "start_error", "text": text}).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
