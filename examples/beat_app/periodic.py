"""A periodic task, and the broker's maintenance beside it in the same schedule."""

import os
import time
from pathlib import Path

from celery import Celery

from kombu_opendata.celery_integration import setup_maintenance

app = Celery("periodic", broker=os.environ.get("OPENDATA_URL", f"opendata://{Path.home()}/beat-queue"))
app.conf.broker_connection_retry_on_startup = True
app.conf.beat_schedule = {
    "note the time": {
        "task": "periodic.note_time",
        "schedule": float(os.environ.get("NOTE_EVERY", "10")),
        "args": [os.environ.get("NOTE_FILE", str(Path.home() / "beat-times.txt"))],
        "options": {"expires": 10},
    },
}
setup_maintenance(app, every=float(os.environ.get("MAINTAIN_EVERY", "30")))


@app.task(ignore_result=True)
def note_time(file: str) -> None:
    with Path(file).open("a") as lines:
        lines.write(f"{time.time():.3f}\n")
