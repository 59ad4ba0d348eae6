"""Sends each task several times and prints what ran. It needs a worker: see README.md."""

from celery.exceptions import TaskRevokedError
from unique_tasks import build_report, index, warn

from kombu_opendata import UniqueViolation

TIMEOUT_SECONDS = 60

if __name__ == "__main__":
    reports = [build_report.apply_async(("May", name), countdown=1) for name in ("Ada", "Grace")]
    drafts = [index.apply_async((1, text), countdown=1) for text in ("h", "he", "hello")]
    warning = warn.delay("/dev/sda")
    try:
        warn.delay("/dev/sda")
    except UniqueViolation as refused:
        print("refused, because of", "this task" if refused.values["task_id"] == warning.id else "another task")
    print("all are sent", flush=True)

    for result in (reports[1], drafts[0], drafts[-1], warning):
        try:
            print(result.get(timeout=TIMEOUT_SECONDS), flush=True)
        except TaskRevokedError:
            print("replaced", flush=True)
