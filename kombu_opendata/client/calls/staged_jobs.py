"""Earlier place of :mod:`kombu_opendata.client.staging_client`."""

from __future__ import annotations

import warnings

from ..staging_client import StagingClient

__all__ = ["StagingClient"]

_TEXT = f"{__name__} is now {StagingClient.__module__}: import StagingClient from there"
warnings.warn(_TEXT, DeprecationWarning, stacklevel=2)
