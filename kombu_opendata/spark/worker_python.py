"""Whether the Python that Spark starts for its own processes has this package, found out before Spark does."""

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
    """See that a command starts a Python of this version that can import this package.

    What is beside this process's own Python is taken to be the same environment, and a package that was shipped in an
    archive is not looked for.

    Args:
        python: ``PYSPARK_PYTHON``, or Spark's default.

    Raises:
        StartError: it does not; the text says what to set.
    """
    found = shutil.which(python)
    if found is None:
        raise _wrong(python, "there is no such program here")
    if Path(found).absolute().parent == Path(sys.executable).parent or not Path(kombu_opendata.__file__).is_file():
        return
    done = subprocess.run([found, "-c", _TRY], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    version, ours = done.stdout.strip(), f"{sys.version_info.major}.{sys.version_info.minor}"
    if version and version != ours:
        raise _wrong(python, f"{found} is Python {version}, and this is {ours}")
    if done.returncode:
        raise _wrong(python, f"{found} says {(done.stderr.strip().splitlines() or ['nothing'])[-1]}")


def _wrong(python: str, why: str) -> StartError:
    return StartError(
        f"Spark would run its Python processes with {python!r}, which can't be used ({why}): set "
        f"PYSPARK_PYTHON={sys.executable} before the session is made",
        python=python,
    )
