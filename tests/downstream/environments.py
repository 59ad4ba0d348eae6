"""Virtual environments for packages that don't go together with the newest Celery, or with other packages.

They are in ``.venv-downstream/``, one for each file of ``requirements``, and are kept until the file, this project's
dependencies or the interpreter change.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
import tomllib
from pathlib import Path

from ..support.processes import run

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"
ENVIRONMENTS = ROOT / ".venv-downstream"
INSTALL_SECONDS = 540
_COMPARE = """if True:
    import importlib.metadata, sys
    for name, version in (pin.split("==") for pin in sys.argv[1:]):
        installed = importlib.metadata.version(name)
        assert installed == version, f"{name} is {installed} instead of {version}"
"""


def environment(name: str) -> str:
    """Return the interpreter of the environment, which is created if it does not exist or is out of date.

    One process of tests creates one environment at a time, because each installs this project from the same folder.
    """
    folder, requirements = ENVIRONMENTS / name, REQUIREMENTS / f"{name}.txt"
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = _digest(requirements)
    ENVIRONMENTS.mkdir(exist_ok=True)
    with (ENVIRONMENTS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            run([sys.executable, "-m", "venv", str(folder)], ROOT)
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            run([*pip, "--editable", str(ROOT), "--requirement", str(requirements)], ROOT, seconds=INSTALL_SECONDS)
            stamp.write_text(wanted)
    pins = [line for line in requirements.read_text().splitlines() if "==" in line]
    run([str(python), "-c", _COMPARE, *pins], ROOT)
    return str(python)


def _digest(requirements: Path) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parts = (sys.version, requirements.read_text(), *sorted(project["dependencies"]))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
