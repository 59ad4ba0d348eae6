"""Tasks of celery-singleton."""

import json
import os
import sys
import threading
import time
from pathlib import Path

from celery import Celery
from celery_singleton import Singleton

app = Celery("singleton")
app.conf.singleton_backend_class = "kombu_opendata.celery_integration.SingletonBackend"
app.conf.update(json.loads(os.environ.get("SINGLETON_SETTINGS", "{}")))


@app.task(base=Singleton)
def once(number: int) -> int:
    return number


@app.task(base=Singleton)
def fails(number: int) -> None:
    raise ValueError(number)


@app.task(base=Singleton, bind=True, max_retries=2)
def retried(self: Singleton, number: int) -> None:
    if self.request.retries < 2:
        raise self.retry(countdown=0)


if __name__ == "__main__":
    # Threads that send the same tasks as other processes, when the gate is opened.
    gate, threads = Path(sys.argv[1]), 4

    def send() -> None:
        while not gate.exists():
            time.sleep(0.001)
        for number in range(20):
            print(f"{number} {once.delay(number).id}\n", end="", flush=True)  # one write

    started = [threading.Thread(target=send) for _ in range(threads)]
    for thread in started:
        thread.start()
    print("ready", flush=True)
    for thread in started:
        thread.join()
