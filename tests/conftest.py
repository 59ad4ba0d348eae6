"""Fixtures that every kind of test uses, and the markers that follow from a test's folder."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

from .support.ledger import Ledger
from .support.prepared_broker import prepared_brokers
from .support.processes import Children, children, wait_until
from .support.s3 import S3, S3Process, s3_named
from .support.verified import assert_all_verified

TESTS = Path(__file__).parent
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and commands would print narrow tables
BROKER_STOP_SECONDS = 60
# An example's time says more about the machine than about the code. As Hypothesis does by default, a run of CI takes
# the same examples each time, so that it fails for the change that it checks; runs elsewhere look for new ones.
hypothesis.settings.register_profile("untimed", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("untimed")
# for planted bugs, where any failure is enough
hypothesis.settings.register_profile(
    "unshrunk", derandomize=True, phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate)
)


#: what takes longest is first, and short modules are last, so that all processes of tests end at the same time
_ORDER = {"spark": 0, "unit": 2}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    paths = {item.path for item in items}
    places = {path: path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ("",) for path in paths}
    for item in items:
        place = places[item.path]
        if place[0] in ("acceptance", "downstream", "faults"):
            item.add_marker(place[0])
        fixtures = set(getattr(item, "fixturenames", ()))
        if {"spark", "browser"} & fixtures:
            item.add_marker("slow")
        # with `--dist loadgroup`: a process for all that share the Spark session, and for each other module
        item.add_marker(pytest.mark.xdist_group("spark" if "spark" in fixtures else str(item.path)))
    items.sort(key=lambda item: _ORDER.get(places[item.path][0], 1))


def pytest_collection_finish() -> None:
    """Leave what was collected, which lives to the end, out of each full collection of garbage."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def brokers_prepared() -> Iterator[None]:
    """Embedded brokers start faster."""
    with prepared_brokers():
        yield


@pytest.fixture
def store_folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A new folder with a short path (a Unix socket's may have 107 bytes).

    At the end its broker is stopped, and the store that is left is verified.
    """
    with _temporary_store(verified=request.node.get_closest_marker("damages_store") is None) as folder:
        yield folder


@pytest.fixture(scope="module")
def module_store_folder() -> Iterator[Path]:
    """A ``store_folder`` that a module's tests share."""
    with _temporary_store() as folder:
        yield folder


@contextmanager
def _temporary_store(*, verified: bool = True) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="odq-", dir="/tmp"))
    try:
        yield folder
    finally:
        try:
            for pid_file in sorted(folder.rglob("broker.pid")):
                _stop_broker(pid_file)
            if verified:
                assert_all_verified(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def broker_url(store_folder: Path) -> str:
    """The URL of an embedded broker on ``store_folder``, which the first client starts."""
    return f"opendata://{store_folder}"


@pytest.fixture
def started() -> Iterator[Children]:
    """The processes that a test starts and adds; what is left of them is killed at its end."""
    with children() as processes:
        yield processes


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """What the tasks of a test wrote down."""
    return Ledger(tmp_path / "ran.txt")


@pytest.fixture(scope="session")
def s3_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Process]:
    """An S3 server for all tests that need one."""
    pytest.importorskip("moto", reason="moto is not installed: pip install kombu-opendata[test]")
    with children() as processes:
        processes.add(server := S3Process(tmp_path_factory.mktemp("s3")))
        yield server


@pytest.fixture(scope="module")
def s3(s3_process: S3Process) -> Iterator[S3]:
    """An S3 server with an empty bucket, which the environment names to clients; a module's tests share it."""
    with s3_named(s3_process) as found:
        yield found


def _stop_broker(pid_file: Path) -> None:
    """SIGTERM and wait; a broker that does not obey is killed, and the test fails."""
    try:
        pid = int(pid_file.read_text().split()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return
    if not _is_broker(pid, pid_file.parent):
        return
    os.kill(pid, signal.SIGTERM)
    what = f"the end of broker {pid} of {pid_file.parent} after SIGTERM"
    try:
        wait_until(lambda: not _is_broker(pid, pid_file.parent), BROKER_STOP_SECONDS, what)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        raise


def _is_broker(pid: int, folder: Path) -> bool:
    """Whether the process runs the folder's broker.

    A pid file may be older than its process: the number may be somebody else's by now, or that of a test which runs a
    broker inside itself. A broker names its folder on its command line, and a zombie's command line is empty.
    """
    try:
        os.kill(pid, 0)
        return os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return pid != os.getpid() and not Path("/proc/self/cmdline").exists()
