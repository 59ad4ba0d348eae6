"""Runs functions in fresh processes, and several of them together from behind a barrier.

Results travel through a queue and not through standard output: an embedded broker that a measured
client starts may outlive it and would keep an inherited pipe open.
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

#: a process is at rest if it took at most so many seconds of CPU in each of the last seconds, so many of them
_QUIET_CPU = 0.1
_QUIET_SECONDS = 5


class BenchError(Exception):
    """A measurement could not be made; the text says which and why."""


class Waiter(Protocol):
    """The part of a barrier that a measured function sees."""

    def wait(self) -> Any: ...


def run_together(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, deadline_seconds: float = DEADLINE_SECONDS
) -> list[Any]:
    """Calls ``function(barrier, *arguments[i])`` in one process each; returns what they returned, in any order.

    Raises:
        BenchError: one of them failed, died or exceeded the deadline; the others are ended.
    """
    barrier = _SPAWN.Barrier(len(arguments), timeout=60.0)
    answers: Any = _SPAWN.Queue()
    children: list[BaseProcess] = [
        _SPAWN.Process(target=_child, args=(answers, barrier, function, one)) for one in arguments
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
    """Calls ``function(barrier, *arguments)`` in a process of its own and returns what it returned."""
    return run_together(function, [arguments])[0]


@contextmanager
def beside(function: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Runs ``function(ready, over, *arguments)`` meanwhile in a process of its own.

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
            dead = [child.exitcode for child in children if child.exitcode not in (None, 0)]
            if dead:
                raise BenchError(f"a client process died with exit code {dead[0]}") from None
            if time.monotonic() > until:
                raise BenchError(f"clients did not finish within {deadline_seconds:.0f} s") from None
            continue
        if not good:
            raise BenchError(f"a client failed:\n{value}")
        results.append(value)
    return results


def wait_until(condition: Callable[[], Any], what: str, *, seconds: float, poll_seconds: float = 0.05) -> None:
    """Waits for `condition` to become true.

    Raises:
        BenchError: it did not within `seconds`.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise BenchError(f"{what}: not within {seconds:.0f} s")
        time.sleep(poll_seconds)


def is_running(pid: int) -> bool:
    """Whether this process exists and has not exited (a zombie has)."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user's and system's, of all of its threads; in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """Return a process's memory in MB (10⁶ bytes): resident, or the highest so far, ``VmHWM``; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in text.splitlines() if line.startswith(f"{field}:")), 0.0)


def tree_memory_mb(pid: int) -> float:
    """Return the resident memory of a process and of those that it started."""
    return sum(map(memory_mb, tree_of(pid)))


def tree_of(pid: int) -> list[int]:
    """A process and those that it started and that still run."""
    found = [pid]
    with suppress(FileNotFoundError, ProcessLookupError):  # it exits just now
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += [one for child in children.read_text().split() for one in tree_of(int(child))]
    return found


def tree_cpu_seconds(pid: int) -> float:
    """CPU time so far of a process and of those that it started and that still run."""
    found = 0.0
    for one in tree_of(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += cpu_seconds(one)
    return found


def wait_at_rest(pid: int, *, seconds: float = 180.0) -> None:
    """Waits until a process and those that it started take next to no CPU.

    What is measured then is not beside the compaction of what was written.

    One that has exited is at rest, too, as an embedded broker that nobody is connected to.

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


def end(pid: int, *, with_signal: int = signal.SIGTERM, grace_seconds: float = 30.0) -> float:
    """Ends one process, by force after the grace time; returns the seconds that took."""
    start = time.perf_counter()
    try:
        os.kill(pid, with_signal)
        try:
            wait_until(lambda: not is_running(pid), f"exit of {pid}", seconds=grace_seconds, poll_seconds=0.002)
        except BenchError:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not is_running(pid), f"exit of {pid} after SIGKILL", seconds=10.0)
    except ProcessLookupError:
        pass
    return time.perf_counter() - start


@contextmanager
def server(
    command: Sequence[str], *, log: str, env: dict[str, str] | None = None, user: str | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server in a process group of its own, perhaps as another user; ends the whole group on the way out."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            start_new_session=True,
            cwd=None if user is None else "/",
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    try:
        yield process
    finally:
        _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
