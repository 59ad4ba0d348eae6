"""A broker, workers and programs for other people's packages.

The packages are those of the extra ``downstream``. A module that tests one is also collected where the extra is not
installed: it imports the package in a test, or in an app of ``apps``, which a process of its own runs.

A run proves the rows of docs/compatibility.md: a module that declares some fails if one of its tests is skipped, or if
a package is not installed in the version of the page.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Protocol

import pytest

from kombu_opendata import QueueClient

from ..support.processes import Children, run
from ..support.served import ServedBroker
from ..support.workers import CeleryWorker
from .collector import Collector, collecting
from .environments import ROOT, environment
from .prometheus import start_prometheus

__all__ = ["start_prometheus"]

APPS = Path(__file__).parent / "apps"
PAGE = runpy.run_path(str(ROOT / "tools" / "site" / "compatibility_page.py"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_skipped(report, collector.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_if_skipped(report, item.path)
    return report


def fail_if_skipped(report: pytest.CollectReport | pytest.TestReport, path: Path) -> None:
    if report.skipped and path.is_file() and PAGE["rows_of"](path):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{path.name} must prove its rows of docs/compatibility.md. {reason}"


@pytest.fixture(scope="module", autouse=True)
def versions_of_the_page(request: pytest.FixtureRequest) -> None:
    """Compare the packages of the extra with the page; ``environment`` compares those that it installs."""
    versions = PAGE["extra_versions"]()
    names = {row["package"] for row in PAGE["rows_of"](request.path)} & versions.keys()
    installed = {name: [each.version for each in distributions(name=name)][:1] for name in names}
    assert installed == {name: [versions[name]] for name in names}, "docs/compatibility.md has other versions"


class StartWorker(Protocol):
    """Start a worker of an app in ``apps`` on the test's broker, and wait until it consumes.

    Args:
        app: the app's module, in ``cwd``; also the name of the worker, if it is not given.
        options: of the command line, such as ``-E``.
    """

    def __call__(
        self,
        app: str,
        *options: str,
        name: str = "",
        url: str = "",
        pool: str = "prefork",
        concurrency: int = 1,
        cwd: Path = APPS,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
    ) -> CeleryWorker: ...


class RunProgram(Protocol):
    """Run a program of ``apps`` on the test's broker to its end; returns what it prints. It must succeed."""

    def __call__(
        self,
        program: str,
        *arguments: str,
        cwd: Path = APPS,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        seconds: float = 90,
    ) -> str: ...


@pytest.fixture
def broker(store_folder: Path, started: Children) -> ServedBroker:
    """A broker with a TCP port and metrics: ``broker.url``, ``broker.metrics_port``."""
    listen = ("--listen", "tcp:127.0.0.1:0", "--metrics", "127.0.0.1:0")
    started.add(served := ServedBroker(store_folder, "--store", f"file://{store_folder}/store", *listen))
    return served


@pytest.fixture
def client(broker: ServedBroker) -> Iterator[QueueClient]:
    """A client of the broker, for its metrics and attempts."""
    with QueueClient(broker.url) as connected:
        yield connected


@pytest.fixture
def start_worker(broker: ServedBroker, tmp_path: Path, started: Children) -> StartWorker:
    def start(app: str, *options: str, name: str = "", url: str = "", cwd: Path = APPS, **given: Any) -> CeleryWorker:
        given = {"pool": "prefork", **given}
        worker = CeleryWorker(app, url or broker.url, tmp_path, name or app, *options, cwd=cwd, **given)
        started.add(worker)
        worker.wait_until_ready()
        return worker

    return start


@pytest.fixture
def run_program(broker: ServedBroker) -> RunProgram:
    def run_to_its_end(
        program: str,
        *arguments: str,
        cwd: Path = APPS,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        seconds: float = 90,
    ) -> str:
        env = {"CELERY_BROKER_URL": broker.url, **(env or {})}
        return run([python, program, *arguments], cwd, env, seconds)

    return run_to_its_end


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as server:
        yield server


@pytest.fixture(scope="session")
def python_with() -> Callable[[str], str]:
    """The interpreter of a virtual environment with ``requirements/<name>.txt`` and this project."""
    return environment
