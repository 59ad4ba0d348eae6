"""Handlers of FastAPI that publish tasks and wait for results without blocking the event loop."""

from celery import chord
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from shop_tasks import app as celery
from shop_tasks import price, total

import kombu_opendata
from kombu_opendata import AwaitableResult

app = FastAPI(title="Shop")


@app.exception_handler(kombu_opendata.RetryLater)
async def refuse(_request: Request, error: kombu_opendata.RetryLater) -> JSONResponse:
    """A queue is full, or the broker has no disk space: nothing was stored."""
    return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})


@app.post("/prices", status_code=202)
async def start(item: str, count: int = 1) -> str:
    """The task is durable before the client gets its id."""
    result = await kombu_opendata.apply_async(price, (item, count))
    return result.id


@app.get("/prices/{task_id}")
async def look(task_id: str, seconds: float = 5) -> dict[str, float | str]:
    """Wait for a task that any process has started."""
    try:
        return {"price": await AwaitableResult(celery.AsyncResult(task_id)).get(seconds)}
    except TimeoutError:
        return {"state": "not ready"}
    except ValueError as error:
        return {"state": "failed", "reason": str(error)}


@app.post("/orders")
async def order(items: list[str]) -> float:
    """Many tasks, and one for their results."""
    result = await kombu_opendata.apply_async(chord([price.s(item, 1) for item in items], total.s()))
    return float(await result.get(30))
