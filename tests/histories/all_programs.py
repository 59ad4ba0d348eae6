"""The programs of clients by their names."""

from __future__ import annotations

from collections.abc import Callable

from .programs import consume, produce
from .queue_programs import drive_jobs, fill_box, read_letters, steer, trespass, weigh, write_letters
from .task_programs import send_tasks, work

PROGRAMS: dict[str, Callable[..., None]] = {
    program.__name__: program
    for program in (
        consume,
        drive_jobs,
        fill_box,
        produce,
        read_letters,
        send_tasks,
        steer,
        trespass,
        weigh,
        work,
        write_letters,
    )
}
