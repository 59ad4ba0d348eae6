"""Functions in fresh processes, several of them behind a barrier; servers; CPU and memory of process trees.

Results travel through a queue and not through standard output: an embedded broker that a measured client starts may
outlive it and would keep an inherited pipe open.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

_SPAWN = multiprocessing.get_context("spawn")
DEADLINE_SECONDS = 900.0
#: a process is at rest if it took at most this CPU in each of the last seconds
_QUIET_CPU, _QUIET_SECONDS = 0.1, 5
#: SlateDB's runtimes, and the one of its binding
_SLATE_THREADS = ("slatedb-", "tokio-", "async-compat")
_GONE = (FileNotFoundError, ProcessLookupError)


class BenchError(Exception):
    """A measurement could not be made; the text has the measurement and the reason."""


class Waiter(Protocol):
    """The part of a barrier that a measured function uses."""

    def wait(self) -> Any: ...


# ---------------------------------------------------------------------- functions
def run_together(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, deadline_seconds: float = DEADLINE_SECONDS
) -> list[Any]:
    """Call ``function(barrier, *arguments[i])`` in one process each; return their results, in any order.

    Raises:
        BenchError: one of them failed, died or exceeded the deadline; the others are ended.
    """
    barrier = _SPAWN.Barrier(len(arguments), timeout=60.0)
    answers: Any = _SPAWN.Queue()
    children: list[BaseProcess] = [
        _SPAWN.Process(target=_child, args=(answers, barrier, function, given)) for given in arguments
    ]
    try:
        for child in children:
            child.start()
        results = _collect(answers, children, deadline_seconds)
        for child in children:
            child.join(30.0)
        return results
    finally:
        for child in children:
            if child.is_alive():
                child.kill()
                child.join()


def run_alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``function(barrier, *arguments)`` in a new process and return its result."""
    return run_together(function, [arguments])[0]


@contextmanager
def beside(function: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Run ``function(ready, over, *arguments)`` in another process during the block.

    It sets the event `ready`, and returns soon after the event `over` was set.

    Raises:
        BenchError: it was not ready in time, or has failed.
    """
    ready, over = _SPAWN.Event(), _SPAWN.Event()
    child = _SPAWN.Process(target=function, args=(ready, over, *arguments))
    child.start()
    try:
        wait_until(lambda: ready.is_set() or not child.is_alive(), function.__name__, seconds=120.0)
        if not child.is_alive():
            raise BenchError(f"{function.__name__} has ended with exit code {child.exitcode}")
        yield
    finally:
        over.set()
        child.join(60.0)
        if child.is_alive():
            child.kill()
            child.join()
    if child.exitcode:
        raise BenchError(f"{function.__name__} has ended with exit code {child.exitcode}")


def _child(answers: Any, barrier: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answers.put((True, function(barrier, *arguments)))
    except BaseException:
        barrier.abort()
        answers.put((False, traceback.format_exc()))


def _collect(answers: Any, children: Sequence[BaseProcess], deadline_seconds: float) -> list[Any]:
    until = time.monotonic() + deadline_seconds
    results: list[Any] = []
    while len(results) < len(children):
        try:
            good, value = answers.get(timeout=1.0)
        except queue.Empty:
            if dead := [child.exitcode for child in children if child.exitcode not in (None, 0)]:
                raise BenchError(f"a client process died with exit code {dead[0]}") from None
            if time.monotonic() > until:
                raise BenchError(f"clients did not finish within {deadline_seconds:.0f} s") from None
            continue
        if not good:
            raise BenchError(f"a client failed:\n{value}")
        results.append(value)
    return results


# ---------------------------------------------------------------------- readings
def is_running(pid: int) -> bool:
    """Check that a process exists and has not exited, as a zombie has."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except _GONE:
        return False


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far, user's and system's, of all of its threads; in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def thread_seconds(pid: int) -> dict[str, float]:
    """Return the CPU time of our broker so far: of its loop, of SlateDB's threads, and of its others."""
    seconds = {"loop": 0.0, "slatedb": 0.0, "others": 0.0}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(*_GONE):
            is_slate = (thread / "comm").read_text().startswith(_SLATE_THREADS)
            group = "loop" if thread.name == str(pid) else "slatedb" if is_slate else "others"
            seconds[group] += int((thread / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def tree_of(pid: int) -> list[int]:
    """Return a process and those that it started and that still run."""
    pids = [pid]
    with suppress(*_GONE):  # it exits just now
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            pids += [below for child in children.read_text().split() for below in tree_of(int(child))]
    return pids


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU time so far of a process and of those that it started and that still run."""
    seconds = 0.0
    for member in tree_of(pid):
        with suppress(*_GONE):
            seconds += cpu_seconds(member)
    return seconds


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """Return a process's memory in MB (10⁶ bytes): resident, or the highest so far, ``VmHWM``; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except _GONE:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{field}:")), 0.0)


def tree_memory_mb(pid: int) -> float:
    """Return the resident memory of a process and of those that it started."""
    return sum(map(memory_mb, tree_of(pid)))


# ---------------------------------------------------------------------- waits
def wait_until(condition: Callable[[], Any], what: str, *, seconds: float, poll_seconds: float = 0.05) -> None:
    """Wait for `condition` to become true.

    Raises:
        BenchError: it did not within `seconds`.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise BenchError(f"{what}: not within {seconds:.0f} s")
        time.sleep(poll_seconds)


def wait_at_rest(pid: int, *, seconds: float = 180.0) -> None:
    """Wait until a process and those that it started take next to no CPU, so that compactions are over.

    A process that has exited is at rest, too, as an embedded broker without clients.

    Raises:
        BenchError: it still worked after `seconds`.
    """
    until = time.monotonic() + seconds
    quiet, last = 0, 0.0
    while quiet <= _QUIET_SECONDS and is_running(pid):
        if time.monotonic() > until:
            raise BenchError(f"process {pid} still works after {seconds:.0f} s")
        now = tree_cpu_seconds(pid)
        quiet = quiet + 1 if now - last <= _QUIET_CPU else 0
        last = now
        time.sleep(1.0)


# ---------------------------------------------------------------------- servers
def end(pid: int, *, with_signal: int = signal.SIGTERM, grace_seconds: float = 30.0) -> float:
    """End a process, by force after the grace time; return the seconds that took."""
    start = time.perf_counter()
    with suppress(ProcessLookupError):
        os.kill(pid, with_signal)
        try:
            wait_until(lambda: not is_running(pid), f"exit of {pid}", seconds=grace_seconds, poll_seconds=0.002)
        except BenchError:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not is_running(pid), f"exit of {pid} after SIGKILL", seconds=10.0)
    return time.perf_counter() - start


@contextmanager
def server(command: Sequence[str], *, log: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a new process group; end the whole group on the way out."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
        )
    try:
        yield process
    finally:
        for number, seconds in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 10.0)):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(seconds)
                break
        process.wait()
