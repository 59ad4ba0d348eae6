"""The lists of docs/compatibility.md: packages, from tests/downstream and the pinned versions, and transport options.

``python tools/site/compatibility_page.py`` writes the page.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from kombu_opendata.client.foreign_options import FOREIGN_OPTIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
TESTS = ROOT / "tests" / "downstream"
TABLE = re.compile(r"(?s)(?<=<!-- packages -->\n\n).*?(?=\n<!-- end of packages -->)")
OPTIONS = re.compile(r"(?s)(?<=<!-- options -->\n\n).*?(?=\n<!-- end of options -->)")
PINNED = re.compile(r"(?m)^([\w.-]+)(?:\[[\w,-]+\])?==([\w.]+)")


def pinned_versions() -> dict[str, str]:
    """Return the version of each package that the tests install, by its normalized name."""
    lists = [path.read_text() for path in sorted((TESTS / "requirements").glob("*.txt"))]
    # A name may be in several lists, such as that of Celery; the extra is what the tests of most packages use.
    return {**versions_in("\n".join(lists)), **extra_versions()}


def extra_versions() -> dict[str, str]:
    """Return the versions of the extra, whose packages are installed beside the tests."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return versions_in("\n".join(extras["downstream"]))


def versions_in(requirements: str) -> dict[str, str]:
    return {_normalized(name): version for name, version in re.findall(PINNED, requirements)}


def declarations() -> Iterator[dict[str, str]]:
    """Yield the rows that the test modules declare, by package."""
    rows = [row for path in sorted(TESTS.rglob("test_*.py")) for row in rows_of(path)]
    yield from sorted(rows, key=lambda row: row["package"].lower())


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows that a test module declares, as their literal fields."""
    rows = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPATIBILITY":
            calls = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value]
            rows += [_fields(call) for call in calls]
    return rows


def _fields(call: ast.expr) -> dict[str, str]:
    if not isinstance(call, ast.Call) or call.args or ast.unparse(call.func) != "Row":
        raise ValueError(f"COMPATIBILITY is no Row(package=…, …): {ast.unparse(call)}")
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}


def table() -> str:
    versions = pinned_versions()
    lines = ["| package | version | tried | result | what to set |", "|---|---|---|---|---|"]
    for row in declarations():
        version = row.get("version") or versions[_normalized(row["package"])]
        cells = (row["package"], version, row["tried"], row["result"], row.get("settings", ""))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def options() -> str:
    """Return the transport options of other brokers, by what replaces them."""
    names: dict[str, list[str]] = {}
    for each in FOREIGN_OPTIONS:
        names.setdefault(each.instead, []).extend(each.names)
    return "".join(f"* {', '.join(f'`{name}`' for name in names[instead])}: {instead}\n" for instead in names)


def page() -> str:
    """Return the page with its present text around the lists."""
    return OPTIONS.sub(lambda _: options(), TABLE.sub(lambda _: table(), PAGE.read_text()))


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    PAGE.write_text(page())
