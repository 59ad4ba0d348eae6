"""A web application that publishes a task for each request and returns its result: WSGI, and FastAPI.

It publishes when it is imported, so its connections exist before a server that loads it early forks.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from celery import Celery
from fastapi import FastAPI

import kombu_opendata

URL = os.environ["CELERY_BROKER_URL"]
SECONDS = 60
app = Celery("orders", broker=URL, backend=URL)


@app.task
def square(number: int) -> int:
    return number * number


@app.task
def loaded(pid: int) -> int:
    return pid


if os.environ.get("ORDERS_IS_SERVED"):
    app.finalize()  # Celery makes tasks at their first use, which fails in two threads at once
    loaded.delay(os.getpid()).get(SECONDS)


def wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    number = int(parse_qs(environ["QUERY_STRING"])["number"][0])
    squared = square.delay(number).get(SECONDS)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {squared}".encode()]


asgi = FastAPI()


@asgi.get("/")
async def order(number: int) -> str:
    """Publish and wait on the event loop."""
    result = await kombu_opendata.apply_async(square, (number,))
    return f"{os.getpid()} {await result.get(SECONDS)}"


@asgi.get("/thread")
def order_on_a_thread(number: int) -> str:
    """Publish and wait as in any other function; FastAPI calls it on a thread."""
    return f"{os.getpid()} {square.delay(number).get(SECONDS)}"


@asgi.get("/blocking")
async def order_on_the_loop(number: int) -> str:
    """Publish without waiting for the event loop, which the confirmation blocks for a moment."""
    return f"{os.getpid()} {square.delay(number).id}"
