"""Facts about the machine and the versions, for the report; bytes on its disk and written to it."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

#: all processors are idle if they were busy for at most this share of each of the last seconds
_IDLE_SHARE, _IDLE_SECONDS = 0.05, 5
#: the longest wait for that, before the workloads of a run
_WAIT_SECONDS = 60.0
#: of /proc/diskstats, whatever the sectors of the device are
_SECTOR_BYTES = 512
PACKAGES = ("kombu-opendata", "kombu", "celery", "slatedb", "msgspec", "uvloop", "amqp", "redis")


def facts(folder: Path) -> dict[str, str]:
    """Wait until the machine is quiet, and return the conditions of a run; `folder` has the brokers' data."""
    load, is_quiet = os.getloadavg(), wait_until_idle(_WAIT_SECONDS) <= _IDLE_SHARE
    quiet = "" if is_quiet else ": the machine was **not quiet**; do not rely on these numbers"
    processor = _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    memory = _field("/proc/meminfo", "MemTotal")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "processor": f"{processor}, {os.cpu_count()} cores",
        "memory": f"{int(memory.split()[0]) / 2**20:.1f} GiB" if memory else "unknown",
        "system": f"{platform.system()} {platform.release()}, {_distribution()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "disk": f"{_file_system(folder)}; append of 4 kB + fsync: {fsync_milliseconds(folder):.2f} ms",
        "load average before": " ".join(f"{value:.2f}" for value in load) + quiet,
    }


def fsync_milliseconds(folder: Path, times: int = 100) -> float:
    """Return the median time of an append of 4 kB and its fsync."""
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
    """Wait until all processors are idle for some seconds, at most for `seconds`.

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
    """The busy and the total time of all processors, in ticks."""
    for line in _lines("/proc/stat"):
        if line.startswith("cpu "):
            times = [int(ticks) for ticks in line.split()[1:9]]
            return sum(times) - times[3] - times[4], sum(times)  # but idle, and waiting for the disk
    return None


def _commit() -> str:
    """The commit that is checked out, marked if files differ from it; empty where there is no git."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        return subprocess.check_output(command, cwd=Path(__file__).parent, text=True, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


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


def _field(path: str, name: str) -> str:
    """The value of the first line with this name, or nothing."""
    return next((line.partition(":")[2].strip() for line in _lines(path) if line.startswith(name)), "")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def written_bytes(folder: Path) -> int | None:
    """Return the bytes written to the folder's device by the whole machine, once all file systems are synced.

    None where the system does not count them for one device: a folder in memory, or a file system of several devices.
    """
    os.sync()
    number = os.stat(folder).st_dev
    try:
        text = Path("/proc/diskstats").read_text(encoding="ascii")
    except FileNotFoundError:  # not Linux
        return None
    return bytes_of_device(text, os.major(number), os.minor(number))


def bytes_in(folder: Path) -> int:
    """Return the sizes of all files."""
    total = 0
    for place, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:  # deleted since it was listed
                continue
    return total


def bytes_of_device(diskstats: str, major: int, minor: int) -> int | None:
    """Return the bytes written to a device by the text of ``/proc/diskstats``; None if it is not there."""
    for line in diskstats.splitlines():
        fields = line.split()
        if fields[:2] == [str(major), str(minor)]:
            return int(fields[9]) * _SECTOR_BYTES
    return None
