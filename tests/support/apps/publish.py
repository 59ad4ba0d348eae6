"""Publishes numbers with Kombu and writes down each that was confirmed: publish.py URL CONFIRMED FIRST COUNT [GATE].

With GATE it publishes some 200 a second, and ends when that file exists.
"""

import os
import sys
import time
from typing import Any

import kombu as _kombu
from patience import PATIENT  # type: ignore[import-not-found]  # it stands beside this program

import kombu_opendata  # noqa: F401 - registers the transport

#: as Any: the package says it is typed, but most of its functions are not
kombu: Any = _kombu


def main(url: str, confirmed: str, first: int, count: int, gate: str = "") -> None:
    queue = kombu.Queue("numbers", durable=True)
    with kombu.Connection(url, transport_options=PATIENT) as connection, open(confirmed, "a", buffering=1) as file:
        producer = connection.Producer()
        for number in range(first, first + count):
            producer.publish(number, routing_key="numbers", declare=[queue])
            file.write(f"{number}\n")
            if gate:
                time.sleep(0.005)  # the rate, not a wait for anything
                if os.path.exists(gate):
                    return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
