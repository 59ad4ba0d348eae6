"""The files of deploy/, and checks that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kombu_opendata.broker.process.start_settings import contradictions
from kombu_opendata.configuration.options import BrokerOptions
from kombu_opendata.configuration.sources import configuration

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"

Configured = Callable[..., BrokerOptions]


@pytest.fixture
def deploy() -> Path:
    """The folder."""
    return DEPLOY


@pytest.fixture
def configured() -> Configured:
    """The options that a broker has with a config file and an environment, as ``config check`` finds them."""

    def read(file: Path, environment: Mapping[str, str] | None = None) -> BrokerOptions:
        found = configuration({}, environment or {}, file)
        assert not found.errors
        assert not found.warnings
        options = found.options()
        assert not list(contradictions(options))
        return options

    return read
