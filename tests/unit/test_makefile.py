"""What the Makefile's targets install, by dry runs; and a target that finds no interpreter."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def installed(target: str, venv: Path) -> list[str]:
    """What pip would install for a target, into this environment."""
    words = ["make", "--dry-run", "--no-print-directory", "--directory", str(ROOT), target, f"VENV={venv}"]
    clean = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    told = subprocess.run(words, env=clean, capture_output=True, text=True, timeout=60, check=True)
    return re.findall(r"pip .*install .*--editable (\S+)", told.stdout)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that has an interpreter and nothing else."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    return tmp_path


def test_the_demo_installs_the_package_and_no_extra(venv: Path) -> None:
    assert installed("demo", venv) == ["."]


def test_the_demo_installs_nothing_where_the_tests_ran(venv: Path) -> None:
    assert installed("test", venv) == ["'.[test]'"]
    for stamp in (".test", ".demo"):
        (venv / stamp).touch()
    assert installed("demo", venv) == installed("test", venv) == []


def test_other_peoples_packages_are_installed_beside_what_the_tests_need(venv: Path) -> None:
    assert installed("test-downstream", venv) == ["'.[test,downstream]'"]
    (venv / ".dev").touch()
    assert installed("test-downstream", venv) == ["'.[test,downstream]'"]
    (venv / ".downstream").touch()
    assert installed("test-downstream", venv) == []


@pytest.mark.parametrize("target", ["test", "test-long", "lint", "bench", "docs"])
def test_an_environment_of_the_demo_gets_what_another_target_needs(target: str, venv: Path) -> None:
    (venv / ".demo").touch()
    assert installed("demo", venv) == []
    assert installed(target, venv) != []


@pytest.mark.parametrize("stamp", [".test", ".docs", ".dev", ".downstream"])
def test_a_stamp_of_more_is_also_one_of_the_demo(stamp: str) -> None:
    (rule,) = re.findall(rf"(?m)^\$\(VENV\)/\{stamp}:.*\n(?:\t.*\n)+", (ROOT / "Makefile").read_text())
    assert re.search(r"touch \$@ .*\$\(VENV\)/\.demo\b", rule)


def test_the_site_installs_no_spark_and_nothing_where_the_linters_ran(venv: Path) -> None:
    assert installed("docs", venv) == ["'.[docs]'"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = " ".join([*extras["docs"], *extras["web"]])
    assert re.findall(r"kombu-opendata\[([^]]+)\]", needed) == ["web"]
    assert not re.search("spark|pandas|pytest|mypy", needed)
    (rule,) = re.findall(r"(?m)^\$\(VENV\)/\.dev:.*\n(?:\t.*\n)+", (ROOT / "Makefile").read_text())
    for stamp in (".dev", *re.findall(r"\$\(VENV\)/(\.\w+)", rule.partition("touch")[2])):
        (venv / stamp).touch()
    for target in ("lint", "types", "docs", "build", "test-long", "test"):  # as .ci/run does
        assert installed(target, venv) == []


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 2)])
def test_a_missing_python_is_an_error_in_continuous_integration(ci: str, code: int, venv: Path) -> None:
    (venv / ".dev").touch()
    for tool in ("make", "ls", "paste", "sh"):
        (venv / "bin" / tool).symlink_to(str(shutil.which(tool)))
    words = ["make", "--no-print-directory", "--directory", str(ROOT), "test-pythons", f"VENV={venv}"]
    env = {"PATH": str(venv / "bin"), "PYENV_ROOT": str(venv), **({"CI": ci} if ci else {})}
    run = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout == "neither Python 3.12 nor 3.13 is installed\n"
    assert run.returncode == code, run.stderr


def test_no_file_can_take_the_place_of_a_target() -> None:
    text = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"(?m)^([a-z-]+):(?! export)", text)) == set(
        re.findall(r"(?m)^\.PHONY: (.+)$", text)[0].split()
    )
