"""``opendata-queue`` whose sessions keep their place for longer than any machine stalls: long_grace.py ARGUMENTS….

The usual grace is 2 s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kombu_opendata.broker.wire.broker_settings import BrokerSettings

GRACE_SECONDS = 600.0


def change_settings(change: Callable[[BrokerSettings], BrokerSettings]) -> None:
    """Have brokers of this process use other settings than those that follow from their options."""
    from kombu_opendata.broker.process import process  # imports what reads the defaults of queues
    from kombu_opendata.broker.process.start_settings import broker_settings

    vars(process).update({"broker_settings": lambda options: change(broker_settings(options))})


def set_grace(seconds: float) -> None:
    """Have brokers of this process hold so long what was claimed by clients that are gone."""
    change_settings(lambda settings: replace(settings, session_grace_seconds=seconds))


if __name__ == "__main__":
    from kombu_opendata.cli.root import main

    set_grace(GRACE_SECONDS)
    main(sys.argv[1:])
