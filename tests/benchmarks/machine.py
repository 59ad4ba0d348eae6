"""Facts about the machine and the versions, for the report."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

#: all processors are idle if they were busy for at most this share of each of the last seconds, so many of them
_IDLE_SHARE, _IDLE_SECONDS = 0.05, 5
PACKAGES = ("kombu-opendata", "kombu", "celery", "slatedb", "msgspec", "uvloop", "amqp", "redis")


def facts(folder: Path) -> dict[str, str]:
    """What the numbers depend on; `folder` is where the brokers keep their data."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}, {_distribution()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "disk": f"{_file_system(folder)}; append of 4 kB + fsync: {fsync_milliseconds(folder):.2f} ms",
        "load average before": _load(),
    }


def fsync_milliseconds(folder: Path, times: int = 100) -> float:
    """The median time of an append of 4 kB and its fsync."""
    taken = []
    path = folder / "fsync-probe"
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            start = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            taken.append((time.perf_counter() - start) * 1000)
    path.unlink()
    return median(taken)


def wait_until_idle(seconds: float) -> float:
    """Waits until all processors do next to nothing for some seconds, but at most for so many seconds.

    Returns:
        The share of the last second in which they were busy; 0 where there is no /proc/stat.
    """
    until, quiet = time.monotonic() + seconds, 0
    before, busy = _processor_times(), 0.0
    while before is not None and quiet < _IDLE_SECONDS and time.monotonic() < until:
        time.sleep(1.0)
        now = _processor_times() or before
        busy = (now[0] - before[0]) / max(now[1] - before[1], 1)
        quiet = quiet + 1 if busy <= _IDLE_SHARE else 0
        before = now
    return busy


def _processor_times() -> tuple[int, int] | None:
    """How long all processors were busy and how long in all, in ticks."""
    for line in _lines("/proc/stat"):
        if line.startswith("cpu "):
            user, nice, system, idle, waiting, *more = map(int, line.split()[1:9])
            in_all = user + nice + system + idle + waiting + sum(more)
            return in_all - idle - waiting, in_all
    return None


def _commit() -> str:
    """The commit that is checked out, and whether files differ from it; empty where there is no git."""
    try:
        asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        return subprocess.check_output(asked, cwd=Path(__file__).parent, text=True, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _load() -> str:
    load = os.getloadavg()
    text = " ".join(f"{one:.2f}" for one in load)
    return text if load[0] < 0.3 else f"{text}: the machine was **not quiet**; do not rely on these numbers"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            return f"{int(line.split()[1]) / 2**20:.1f} GiB"
    return "unknown"


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.platform()


def _file_system(folder: Path) -> str:
    best, kind = "", "unknown file system"
    for line in _lines("/proc/mounts"):
        _, mount, name = line.split()[:3]
        if folder.absolute().is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, name
    return kind


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
