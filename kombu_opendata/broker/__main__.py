"""``python -m kombu_opendata.broker``: how a client starts an embedded broker. People use ``opendata-queue broker``."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Leave the process that started us, so that nobody has to wait for the broker's end, then run it."""
    if "--embedded" in sys.argv and os.fork() != 0:
        os._exit(0)
    from ..cli import main as cli

    return int(cli(["broker", *sys.argv[1:]], standalone_mode=False) or 0)


if __name__ == "__main__":
    sys.exit(main())
