"""``opendata-queue`` with a clock that is wrong by some seconds: wrong_clock.py SECONDS ARGUMENTS…."""

from __future__ import annotations

import sys
import time


def main(seconds: float, arguments: list[str]) -> None:
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + seconds
    time.time_ns = lambda: right_ns() + int(1e9 * seconds)
    from kombu_opendata.cli.root import main as cli

    cli(arguments)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
