"""Consumes numbers with Kombu and writes down what it does before it does it: consume.py URL LEDGER SEED GATE.

A line is ``ack N`` or, for one in twenty, ``requeue N``. It ends when GATE exists and nothing comes any more.
"""

import os
import random
import sys
from typing import Any

import kombu as _kombu
from patience import PATIENT  # type: ignore[import-not-found]  # it stands beside this program

import kombu_opendata  # noqa: F401 - registers the transport

#: as Any: the package says it is typed, but most of its functions are not
kombu: Any = _kombu


def main(url: str, ledger: str, seed: int, gate: str) -> None:
    dice = random.Random(seed)
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND)

    def received(number: int, message: Any) -> None:
        back = dice.random() < 0.05
        os.write(file, f"{'requeue' if back else 'ack'} {number}\n".encode())
        if back:
            message.requeue()
        else:
            message.ack()

    with kombu.Connection(url, transport_options=PATIENT) as connection:
        queue = kombu.Queue("numbers", durable=True, channel=connection.default_channel)
        with connection.Consumer([queue], callbacks=[received], prefetch_count=50):
            while True:
                try:
                    connection.drain_events(timeout=0.5)
                except TimeoutError:
                    if os.path.exists(gate):
                        return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
