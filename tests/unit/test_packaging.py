"""What a package index and a source distribution get."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_text_for_an_index_has_no_link_that_only_a_clone_can_follow() -> None:
    readme = (ROOT / "README.md").read_text()
    text = runpy.run_path(str(ROOT / "setup.py"))["for_an_index"](readme)
    assert "pip install" in text
    assert "web UI" in text
    assert re.findall(r"\]\((?!https://)[^)]*\)|!\[", text) == []
    assert len(re.findall(r"\]\((?!https://)[^)]*\)", readme)) > 10


def test_what_is_in_the_repository_is_in_the_source_distribution() -> None:
    told = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if told.returncode:
        pytest.skip("this is not a clone")
    tops = {path.split("/")[0] for path in told.stdout.splitlines()}
    manifest = (ROOT / "MANIFEST.in").read_text()
    named = {word for line in re.findall(r"(?m)^(?:include|graft|prune) (.+)$", manifest) for word in line.split()}
    of_itself = {"kombu_opendata", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", ".gitignore"}
    assert sorted(tops - named - of_itself) == []


def test_the_pythons_of_the_classifiers_are_those_that_are_tried() -> None:
    pythons = [found[1] for each in PROJECT["classifiers"] if (found := re.search(r":: (3\.\d+)$", each))]
    environments = re.findall(r"\bpy3(\d+)\b", (ROOT / "tox.ini").read_text().split("[testenv]")[0])
    rows = re.findall(r"(?m)^\| (3\.[\d., ]+) \| (not yet)?", (ROOT / "CONTRIBUTING.md").read_text())
    tried = {version: not not_yet for versions, not_yet in rows for version in versions.split(", ")}
    assert environments == [version.removeprefix("3.") for version in tried]
    assert pythons == [version for version in tried if tried[version]]


def test_the_sbom_has_each_extra_of_users_but_spark() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\nsbom:")[1].split("\n\n")[0]
    (extras,) = re.findall(r"'\.\[([^]]+)\]'", recipe)
    of_developers = {"dev", "docs", "downstream", "fuzz", "mutation", "test"}
    assert extras.split(",") == sorted(set(PROJECT["optional-dependencies"]) - of_developers - {"spark"})


def test_each_dependency_is_reviewed() -> None:
    table = (ROOT / "RELEASING.md").read_text().split("## Dependencies")[1]
    reviewed = {name for first in re.findall(r"(?m)^\| ([^|]+) \|", table) for name in re.findall(r"[\w.-]+", first)}
    extras = ("objectstore", "otel", "spark", "web")
    groups = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    needed = {re.split(r"[\[<>=;~ ]", word)[0] for group in groups for word in group}
    assert sorted(needed - reviewed) == []


def _tool(name: str) -> Callable[..., list[str]]:
    """`reasons_against` of a program in `tools`, which is not on the path where the wheel is tested."""
    reasons_against: Callable[..., list[str]] = runpy.run_path(str(ROOT / "tools" / f"{name}.py"))["reasons_against"]
    return reasons_against


UNRELEASED = "CHANGELOG.md has unreleased changes. Move them to the section of the release.\n"
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-31\n\n### Added\n\n- Releases.\n"


@pytest.mark.parametrize(
    ("tag", "changelog", "reason"),
    [
        ("v1.2.4", CHANGELOG, "The tag v1.2.4 is not v1.2.3"),
        ("1.2.3", CHANGELOG, "The tag 1.2.3 is not v1.2.3"),
        ("v1.2.3", CHANGELOG.replace(" - 2026-01-31", ""), "no section with a date"),
        ("v1.2.3", CHANGELOG.replace("2026-01-31", "2026-02-30"), "no section with a date"),
        ("v1.2.3", CHANGELOG.replace("2026-01-31", "0000-00-00"), "no section with a date"),
        ("v1.2.3", CHANGELOG.replace("1.2.3", "1.2.2"), "no section with a date"),
        ("v1.2.3", CHANGELOG.replace("## [1", "- More.\n\n## [1"), "unreleased changes"),
    ],
)
def test_a_release_is_refused(tag: str, changelog: str, reason: str) -> None:
    (sentence,) = _tool("release")(tag, "1.2.3", changelog)
    assert reason in sentence


def test_a_release_is_accepted() -> None:
    assert _tool("release")("v1.2.3", "1.2.3", CHANGELOG) == []


def test_each_version_in_the_changelog_has_a_date() -> None:
    headings = re.findall(r"(?m)^## (.+)$", (ROOT / "CHANGELOG.md").read_text())
    assert headings[0] == "[Unreleased]"
    assert [line for line in headings[1:] if not re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", line)] == []


def test_the_lock_has_what_the_tests_need_and_names_no_index() -> None:
    locked = (ROOT / "constraints.txt").read_text()
    names = {line.split("==")[0] for line in locked.splitlines()}
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    needed = {re.split(r"[\[<>=;~ ]", word)[0].lower() for group in groups for word in group}
    assert sorted(needed - names - {"kombu-opendata", "backports.zstd"}) == []
    assert "://" not in locked


def test_a_file_below_the_floor_is_named() -> None:
    files = {name: {"summary": {"percent_covered": percent}} for name, percent in (("a.py", 69.9), ("b.py", 70.0))}
    reasons = _tool("coverage_floor")({"totals": {"percent_covered": 89.9}, "files": files})
    assert reasons == ["All files: 89.9 % is below 90 %.", "a.py: 69.9 % is below 70 %."]


def test_the_exit_code_of_the_floor(tmp_path: Path) -> None:
    def exit_code(percent: float) -> int:
        report = tmp_path / "coverage.json"
        summary = {"percent_covered": percent}
        report.write_text(json.dumps({"totals": summary, "files": {"a.py": {"summary": summary}}}))
        command = [sys.executable, str(ROOT / "tools/coverage_floor.py"), str(report)]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode

    assert (exit_code(95.0), exit_code(50.0)) == (0, 1)


def test_the_exit_code_of_the_release_check() -> None:
    version = re.findall(r'"(.+)"', (ROOT / "kombu_opendata/version.py").read_text())[-1]
    command = [sys.executable, str(ROOT / "tools/release.py"), f"v{version}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) in ((0, ""), (1, UNRELEASED))
