"""``opendata-queue`` whose sessions keep their place for longer than any machine stalls: long_grace.py ARGUMENTS….

The usual grace is 2 s.
"""

from __future__ import annotations

import sys
from dataclasses import replace

GRACE_SECONDS = 600.0


def set_grace(seconds: float) -> None:
    """Have brokers of this process hold so long what was claimed by clients that are gone."""
    from kombu_opendata.broker.process import process  # imports what reads the defaults of queues
    from kombu_opendata.broker.process.start_settings import broker_settings

    changed = {"broker_settings": lambda options: replace(broker_settings(options), session_grace_seconds=seconds)}
    vars(process).update(changed)


if __name__ == "__main__":
    from kombu_opendata.cli.root import main

    set_grace(GRACE_SECONDS)
    main(sys.argv[1:])
