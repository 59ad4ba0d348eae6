"""Sends numbered tasks and writes down what became of each: produce_counted.py URL LOG FIRST OPTIONS [COUNT SECONDS].

Without a count it sends short ones until SIGTERM; else so many that take so long and are acknowledged late.
"""

import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from celery import Celery


def short_ones(first: int) -> Iterator[tuple[str, int, float]]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    dice = random.Random(first)
    while not signal.sigtimedwait({signal.SIGTERM}, 0.04):
        yield dice.choice(["counted.early", "counted.late"]), first, dice.choice([0.0, 0.0, 0.0, 0.05, 0.5])
        first += 1


def main(url: str, log: str, first: str, options: str, count: str = "", seconds: str = "") -> None:
    app: Any = Celery("produce", broker=url)
    app.conf.update(json.loads(options))
    long_ones = (("counted.late", int(first) + number, float(seconds)) for number in range(int(count or 0)))
    with open(log, "a", buffering=1) as file:
        for task, number, takes in long_ones if count else short_ones(int(first)):
            file.write(f"{time.monotonic():.3f} try {number}\n")
            try:
                app.send_task(task, (number, takes), retry=False)
            except Exception as exc:
                file.write(f"{time.monotonic():.3f} failed {number} {exc!r}\n")
            else:
                file.write(f"{time.monotonic():.3f} confirmed {number}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
