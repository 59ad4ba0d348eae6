"""The page on deploy/ has commands that the command itself understands."""

from __future__ import annotations

import re
import shlex

from ...support.command_lines import parse
from .conftest import DEPLOY


def test_every_command_is_understood() -> None:
    lines = re.findall(r"(?m)^[$#] (?:sudo -u \S+ )?(opendata-queue .+)$", (DEPLOY / "README.md").read_text())
    assert len(lines) > 3
    for line in lines:
        parse(shlex.split(line)[1:])
