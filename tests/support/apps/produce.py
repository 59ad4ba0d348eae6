"""Sends numbered tasks and writes down each that was confirmed: produce.py URL LEDGER CONFIRMED FIRST COUNT."""

import sys

from celery import Celery
from patience import PATIENT  # type: ignore[import-not-found]  # it stands beside this program


def main(url: str, ledger: str, confirmed: str, first: int, count: int) -> None:
    app = Celery("produce", broker=url)
    app.conf.broker_transport_options = PATIENT
    with open(confirmed, "a", buffering=1) as file:
        for number in range(first, first + count):
            app.send_task("farm.note", (ledger, str(number)))
            file.write(f"{number}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
