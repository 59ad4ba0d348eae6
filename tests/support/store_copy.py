"""A copy of a store's folder that is in use, as a crash would leave it."""

from __future__ import annotations

import shutil
from pathlib import Path

#: in the order of what refers to what, as SlateDB's compactor may add files meanwhile
_FIRST = ("default.journal", "default/manifest", "default/compactions", "default/wal")
#: what SlateDB is still writing has another name
_UNFINISHED = shutil.ignore_patterns("*#*")


def copy_store(source: Path, target: Path) -> None:
    """Copy the folder of a store with the instance ``default``."""
    first = [source / part for part in _FIRST if (source / part).exists()]
    for part in first:
        shutil.copytree(part, target / part.relative_to(source), ignore=_UNFINISHED)

    def ignored(folder: str, names: list[str]) -> set[str]:
        return set(names) if Path(folder) in first else _UNFINISHED(folder, names)

    shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignored)
