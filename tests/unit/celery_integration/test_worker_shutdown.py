"""What a worker's processes know of its shutdown."""

from __future__ import annotations

import os

import pytest

from kombu_opendata.celery_integration.worker_shutdown import Stage, WorkerShutdown


def test_what_a_task_has_done_waits_until_the_worker_ends() -> None:
    now = 0.0
    shutdown = WorkerShutdown(lambda: now)
    now = 1e6
    assert shutdown.allows_waiting(10)
    shutdown.enter(Stage.WARM)
    assert shutdown.allows_waiting(10)
    now += 9
    assert shutdown.allows_waiting(10)
    now += 2
    assert not shutdown.allows_waiting(10)
    shutdown.enter(Stage.RUNS)
    assert shutdown.allows_waiting(10), "another worker of this process"
    shutdown.enter(Stage.COLD)
    assert not shutdown.allows_waiting(10)


@pytest.mark.parametrize("stage", Stage)
def test_a_pool_process_sees_the_workers_stage(stage: Stage) -> None:
    shutdown = WorkerShutdown(lambda: 0.0)
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_fd)
        os.read(read_fd, 1)  # until the parent has entered the stage
        os._exit(shutdown.allows_waiting(10))
    os.close(read_fd)
    shutdown.enter(stage)
    os.close(write_fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (stage != Stage.COLD)


def test_a_pool_process_whose_worker_is_gone_does_not_wait() -> None:
    shutdown = WorkerShutdown(lambda: 0.0)
    read_fd, write_fd = os.pipe()
    worker = os.fork()
    if worker == 0:
        shutdown = WorkerShutdown(lambda: 0.0)
        own = os.getpid()
        if os.fork() == 0:
            while os.getppid() == own:
                os.sched_yield()
            os.write(write_fd, b"waits" if shutdown.allows_waiting(10) else b"ends")
        os._exit(0)
    os.close(write_fd)
    os.waitpid(worker, 0)
    assert os.read(read_fd, 10) == b"ends"
    os.close(read_fd)
