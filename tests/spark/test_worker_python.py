"""The Python that Spark would start is looked at before Spark starts it; without Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kombu_opendata.errors import StartError
from kombu_opendata.spark.runtimes import check_worker_python


@pytest.fixture(autouse=True)
def forgotten() -> None:
    check_worker_python.cache_clear()


def test_one_that_lacks_this_package(bare_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bare_python.parent))
    for name in ("python3", str(bare_python)):
        with pytest.raises(StartError) as caught:
            check_worker_python(name)
        text = str(caught.value)
        assert text.startswith(
            f"Spark would run its Python processes with {name!r}, which can't be used ({bare_python} printed"
        )
        assert "ModuleNotFoundError: No module named" in text
        assert text.endswith(f"): set PYSPARK_PYTHON={sys.executable} before the session is made")
        assert "\n" not in text


def test_one_of_another_version(tmp_path: Path) -> None:
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\necho 3.8\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(StartError, match=rf"{program} is Python 3\.8, and this is 3\.\d+\)"):
        check_worker_python(str(program))


def test_one_that_is_not_there() -> None:
    with pytest.raises(StartError, match="there is no such program here"):
        check_worker_python("/nowhere/python3")


def test_the_drivers_own_and_one_that_has_all(tmp_path: Path) -> None:
    check_worker_python(sys.executable)
    check_worker_python(str(Path(sys.executable).with_name("python3")))
    program = tmp_path / "python3"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    check_worker_python(str(program))
