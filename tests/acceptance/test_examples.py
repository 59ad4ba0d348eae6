"""The examples do what their text says: run as a user runs them, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..support.processes import INTERRUPTIBLE, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEMO = [sys.executable, str(EXAMPLES / "demo")]
QUICKSTART = EXAMPLES / "quickstart"
DEADLINE_SECONDS = 90


@contextmanager
def process(command: list[str], log: Path, *, cwd: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended by its pid: SIGTERM, and after a while SIGKILL for it and what it started."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_")}
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, cwd=cwd, env={**clean, **env}, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def wait_for(condition: Callable[[], bool], started: subprocess.Popen[bytes], log: Path) -> None:
    def holds() -> bool:
        assert started.poll() is None, f"ended with {started.returncode}:\n{log.read_text()}"
        return condition()

    wait_until(holds, DEADLINE_SECONDS, log.read_text)


def test_the_demo_counts_every_task_once_across_a_kill(store_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    with process([*DEMO, "--tasks", "600", "--folder", str(store_folder)], log, cwd=tmp_path) as demo:
        demo.wait(DEADLINE_SECONDS)
    text = log.read_text()
    assert demo.returncode == 0, text
    assert "Every one of the 600 tasks ran exactly once." in text
    killed = re.search(r"broker (\d+) killed with -9 after (\d+) tasks sent", text)
    took_over = re.search(r"broker (\d+) took over", text)
    assert killed, text
    assert took_over, text
    assert killed[1] != took_over[1]
    assert 300 <= int(killed[2]) <= 600
    numbers = [int(line) for line in (store_folder / "ran.txt").read_text().split()]
    assert sorted(numbers) == list(range(600))
    assert f"opendata://{store_folder}/queue" in text
    assert (store_folder / "queue").is_dir(), "the store is kept"
    assert not running(int(took_over[1])), "the broker is stopped"


def test_an_interrupted_demo_leaves_no_process_behind(store_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    ledger = store_folder / "ran.txt"
    command = [*INTERRUPTIBLE, *DEMO, "--tasks", "1000000", "--folder", str(store_folder)]
    with process(command, log, cwd=tmp_path) as demo:
        wait_for(lambda: ledger.exists() and ledger.stat().st_size > 0, demo, log)
        demo.send_signal(signal.SIGINT)
        demo.wait(DEADLINE_SECONDS)
    text = log.read_text()
    assert demo.returncode == 130, text
    ready = re.search(r"worker (\d+) is ready .*broker (\d+)", text)
    assert ready, text
    assert not running(int(ready[1]))
    assert not running(int(ready[2]))


def test_the_demo_fails_when_the_store_can_not_be_used(store_folder: Path, tmp_path: Path) -> None:
    (store_folder / "queue").write_text("a file where a folder should be")
    log = tmp_path / "demo.log"
    command = [*DEMO, "--tasks", "10", "--folder", str(store_folder)]
    with process(command, log, cwd=tmp_path) as demo:
        demo.wait(DEADLINE_SECONDS)
    assert demo.returncode == 1, log.read_text()
    assert re.search(r"The demo failed: .*queue.* is a file", log.read_text())
    assert "Traceback" not in log.read_text()


def test_the_quickstart_runs_as_its_readme_says(store_folder: Path, broker_url: str, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    worker_command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--loglevel=INFO"]
    send = [sys.executable, "-c", "from tasks import add; add.delay(2, 2)"]
    env = {**os.environ, "OPENDATA_URL": broker_url}
    with process(worker_command, log, cwd=QUICKSTART, OPENDATA_URL=broker_url) as worker:
        # Sent before the worker is ready or after it: both must do.
        subprocess.run(send, cwd=QUICKSTART, env=env, check=True, timeout=DEADLINE_SECONDS)
        wait_for(lambda: re.search(r"tasks\.add\[.*succeeded in .*: 4", log.read_text()) is not None, worker, log)
    assert worker.returncode == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def test_the_readme_runs_as_it_is_written(store_folder: Path, tmp_path: Path) -> None:
    """In a home folder of its own, and with no other word than the README's."""
    (code,) = re.findall(
        r"(?s)```python\n(.*?)```", (EXAMPLES.parent / "README.md").read_text().split("## See it work")[0]
    )
    (tmp_path / "tasks.py").write_text(code)
    env = {**os.environ, "HOME": str(store_folder), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in ("python -c 'from tasks import add; add.delay(2, 2)'", "opendata-queue status ~/tasks-queue --json"):
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=DEADLINE_SECONDS
        )
        assert done.returncode == 0, done.stderr
    (queue,) = json.loads(done.stdout)["instances"]["default"]["queues"].values()
    assert queue["available"] == 1
    assert stat.S_IMODE((store_folder / "tasks-queue").stat().st_mode) == 0o700


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
