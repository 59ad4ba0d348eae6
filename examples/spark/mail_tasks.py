"""The tasks of the example, as any Celery app has them: celery -A mail_tasks worker"""

import os
from pathlib import Path

from celery import Celery

FOLDER = Path(os.environ.get("MAIL_FOLDER", Path(__file__).parent / "data")).absolute()

app = Celery("mail_tasks", broker=f"opendata://{FOLDER}/queue")
app.conf.update(task_ignore_result=True, task_routes={"mail.urgent": "urgent"}, worker_prefetch_multiplier=64)


# If it raises, its message is rejected and becomes a failed message. By default, Celery acknowledges failed tasks.
@app.task(name="mail.letter", acks_late=True, acks_on_failure_or_timeout=False)
def letter(customer: int, name: str, balance: float) -> None:
    """Write one letter; a real one would send it."""
    if balance < -499:
        raise ValueError(f"customer {customer} gets no letter but a visit")
    note(f"letter {customer} {name} {balance:.2f}")


@app.task(name="mail.urgent")
def urgent(customer: int, name: str, balance: float) -> None:
    note(f"urgent {customer} {name} {balance:.2f}")


def note(line: str) -> None:
    """Append a line with a single write, so that the lines of several processes do not mix."""
    file = os.open(FOLDER / "letters.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)
