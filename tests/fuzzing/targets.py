"""All targets by name."""

from __future__ import annotations

from .codec_targets import Arguments, Batches, ConfigurationFiles, JournalFiles, Records, Selectors, URLs, Users
from .target import Target
from .web_target import Web
from .wire_targets import Wire, WireBeforeLogin

_TARGETS: tuple[type[Target], ...] = (
    Arguments, Batches, ConfigurationFiles, JournalFiles, Records, Selectors, URLs, Users, Web, Wire, WireBeforeLogin,
)  # fmt: skip
TARGETS = {target.name: target for target in _TARGETS}
