"""Check that the Python that Spark starts for its processes has this package, before Spark fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import kombu_opendata

from ..errors import StartError

_TRY = "import sys; print(*sys.version_info[:2], sep='.'); import cloudpickle, kombu_opendata, pyarrow"
_TIMEOUT_SECONDS = 120


@cache
def check_worker_python(python: str) -> None:
    """Check that a command starts a Python of this version that can import this package.

    A Python in the same folder as this process's Python is not checked, nor is any if this package runs from an
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
    done = subprocess.run([program, "-c", _TRY], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    version, ours = done.stdout.strip(), f"{sys.version_info.major}.{sys.version_info.minor}"
    if version and version != ours:
        raise _wrong(python, f"{program} is Python {version}, and this is {ours}")
    if done.returncode:
        raise _wrong(python, f"{program} printed {(done.stderr.strip().splitlines() or ['nothing'])[-1]}")


def _wrong(python: str, why: str) -> StartError:
    return StartError(
        f"Spark would run its Python processes with {python!r}, which can't be used ({why}): set "
        f"PYSPARK_PYTHON={sys.executable} before the session is made",
        python=python,
    )
