"""Publishes numbers with Kombu without waiting, and ends without a flush: pipeline.py URL STARTED FIRST COUNT."""

import sys
from typing import Any

import kombu as _kombu
from patience import PATIENT  # type: ignore[import-not-found]  # it stands beside this program

import kombu_opendata  # noqa: F401 - registers the transport

#: as Any: the package says it is typed, but most of its functions are not
kombu: Any = _kombu


def main(url: str, started: str, first: int, count: int) -> None:
    queue = kombu.Queue("numbers", durable=True)
    connection = kombu.Connection(url, transport_options={"publish_mode": "pipeline", **PATIENT})
    producer = connection.Producer()
    producer.maybe_declare(queue)
    with open(started, "a", buffering=1) as file:
        for number in range(first, first + count):
            producer.publish(number, routing_key="numbers")
            file.write(f"{number}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
