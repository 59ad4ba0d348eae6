"""Imports of version 0.1 from modules that have moved."""

from __future__ import annotations

import sys

import pytest

from kombu_opendata import staging
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.staging.batch_writer import BatchWriter


def test_they_work_and_name_the_new_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kombu_opendata.client.calls.staged_jobs", raising=False)
    with pytest.warns(DeprecationWarning, match=r"is now kombu_opendata\.client\.staging_client: import StagingClient"):
        from kombu_opendata.client.calls import staged_jobs
    with pytest.warns(DeprecationWarning, match=r"is now kombu_opendata\.staging\.batch_writer\.BatchWriter"):
        writer = staging.BatchWriter
    assert (staged_jobs.StagingClient, writer) == (StagingClient, BatchWriter)
    with pytest.raises(AttributeError, match="no attribute 'BatchReader'"):
        _ = staging.BatchReader
