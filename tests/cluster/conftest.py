"""Clusters of processes for pytest-celery: one broker, several workers, and the app that sends to them.

Its plugin is not loaded: only this folder uses its fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery._state import _set_current_app, get_current_app
from pytest_celery import CeleryBrokerCluster, CeleryTestBroker, CeleryTestSetup, CeleryTestWorker, CeleryWorkerCluster
from pytest_celery.fixtures.broker import celery_broker_cluster_config
from pytest_celery.fixtures.setup import celery_setup, celery_setup_cls, celery_setup_config, celery_setup_name
from pytest_celery.fixtures.worker import celery_worker_cluster_config

from ..support.ledger import Ledger
from .nodes import BrokerNode, WorkerNode

__all__ = [
    "celery_broker_cluster_config",
    "celery_setup",
    "celery_setup_cls",
    "celery_setup_config",
    "celery_setup_name",
    "celery_worker_cluster_config",
]


@pytest.fixture
def celery_broker_cluster(store_folder: Path, tmp_path: Path) -> Iterator[CeleryBrokerCluster]:
    broker = CeleryTestBroker(BrokerNode(store_folder, tmp_path))
    try:
        yield CeleryBrokerCluster(broker)
    finally:
        broker.teardown()


@pytest.fixture
def celery_backend_cluster() -> None:
    """Nobody looks at results."""


@pytest.fixture
def celery_backend_cluster_config() -> None:
    """Nobody looks at results."""


@pytest.fixture
def pools(request: pytest.FixtureRequest) -> list[str]:
    """The pools of the workers; a test names its own by indirect parameters."""
    chosen: list[str] = request.param
    return chosen


@pytest.fixture
def celery_worker_cluster(
    celery_broker_cluster: CeleryBrokerCluster, pools: list[str], tmp_path: Path
) -> Iterator[CeleryWorkerCluster]:
    url = celery_broker_cluster[0].config()["host_url"]
    nodes: list[WorkerNode] = []
    try:
        for number, pool in enumerate(pools, 1):
            nodes.append(WorkerNode(url, tmp_path, pool, number))
        yield CeleryWorkerCluster(*(CeleryTestWorker(node, None) for node in nodes))
    finally:
        for node in nodes:
            node.teardown()


@pytest.fixture
def celery_setup_app(
    celery_setup_cls: type[CeleryTestSetup], celery_setup_config: dict[str, Any], celery_setup_name: str
) -> Iterator[Celery]:
    before = get_current_app()
    app = celery_setup_cls.create_setup_app(celery_setup_config, celery_setup_name)
    try:
        yield app
    finally:
        app.close()
        _set_current_app(before)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ran.txt")
