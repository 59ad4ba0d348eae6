"""``python -m kombu_opendata.broker``: how a client starts an embedded broker. People use ``opendata-queue broker``."""

from __future__ import annotations

import os
import sys

import click


def main() -> int:
    """Leave the process that started us, so that nobody has to wait for the broker's end, then run it."""
    if "--embedded" in sys.argv and os.fork() != 0:
        os._exit(0)
    from ..cli import main as cli

    try:
        return int(cli(["broker", *sys.argv[1:]], standalone_mode=False) or 0)
    except click.ClickException as exc:
        if isinstance(exc, click.UsageError):  # anything else the command reported
            _report(exc)
        exc.show()
        return exc.exit_code


def _report(wrong: click.UsageError) -> None:
    """Tell who started us: the command line was not even read."""
    from ..errors import StartError
    from .process import Readiness

    at = sys.argv.index("--ready-fd") + 1 if "--ready-fd" in sys.argv else 0
    text = f"the broker's options are wrong: {wrong.format_message()}"
    Readiness(int(sys.argv[at]) if at else None).report({"code": StartError.code, "text": text})


if __name__ == "__main__":
    sys.exit(main())
