"""``opendata-queue`` whose broker tidies its store several times a second: quick_tidies.py ARGUMENTS….

The usual interval is 5 s, and six of them while little is written.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from long_grace import change_settings  # type: ignore[import-not-found]  # it stands beside this program

from kombu_opendata.broker.wire.broker_settings import BrokerSettings


def tidy_soon(settings: BrokerSettings) -> BrokerSettings:
    return replace(settings, engine=replace(settings.engine, tidy_interval_seconds=0.1))


if __name__ == "__main__":
    from kombu_opendata.cli.root import main

    change_settings(tidy_soon)
    main(sys.argv[1:])
