"""Sends batches and single messages with idempotency keys, each twice, and writes down what was answered.

send_batches.py URL CONFIRMED FIRST COUNT: a line for each number: its id, and that of its repetition.
"""

import sys

from patience import PATIENT  # type: ignore[import-not-found]  # it stands beside this program

from kombu_opendata import QueueClient

BATCH = 20


def main(url: str, confirmed: str, first: int, count: int) -> None:
    with QueueClient(url, **PATIENT) as client, open(confirmed, "a", buffering=1) as file:
        client.create("batches")
        client.create("keyed")
        for number in range(first, first + count, BATCH):
            numbers = list(range(number, number + BATCH))
            ids = client.send_batch("batches", numbers)
            key = f"key-{number}"
            one = client.send("keyed", number, idempotency_key=key)
            two = client.send("keyed", number, idempotency_key=key)
            file.write(f"{number} {one} {two} {ids[0]} {ids[-1]}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
