"""The checks in docs/contract.md, from the markers `contract` of the tests and the patches of tests/mutants.

``python tools/site/contract_page.py`` writes the most specific of them, and the site has a page of all.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "contract.md"
TESTS = ROOT / "tests"
POINT = re.compile(r"(?ms)^(?P<number>\d+)\. (?P<text>.*?)\n(?P<indent> +)\*Checks\*:(?:|.*?\.)$")
#: modules of a point on the page
_NAMED = 3
_MARKER = "pytest.mark.contract"
_CHECKS = """# Checks of the contract

The test modules that decide each point of [the contract](../contract.md), below `tests/`. This page is made from the
markers of the tests.
"""


def checks() -> dict[int, list[str]]:
    """Return the test modules that decide each point, by its number."""
    modules: dict[int, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text()
        if _MARKER not in source:
            continue
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        markers = [call for call in calls if ast.unparse(call.func) == _MARKER]
        for number in sorted({ast.literal_eval(argument) for call in markers for argument in call.args}):
            modules[number].append(path.relative_to(TESTS).with_suffix("").as_posix())
    return modules


def mutants() -> Counter[int]:
    """Return the number of planted bugs that break each point, by its number."""
    counts: Counter[int] = Counter()
    for path in (TESTS / "mutants").glob("*.patch"):
        counts.update(map(int, path.read_text().split("points: ")[1].splitlines()[0].split()))
    return counts


def points() -> list[int]:
    """Return the numbers of the points on the page."""
    return [int(match["number"]) for match in POINT.finditer(PAGE.read_text())]


def most_specific(modules: dict[int, list[str]]) -> dict[int, list[str]]:
    """Return a few modules of each point: those that decide the fewest points."""
    points = Counter(module for deciding in modules.values() for module in deciding)
    return {number: sorted(sorted(deciding, key=points.__getitem__)[:_NAMED]) for number, deciding in modules.items()}


def page() -> str:
    """Return the page with its present text around the checks."""
    modules, bugs = most_specific(checks()), mutants()

    def point(match: re.Match[str]) -> str:
        number, indent = int(match["number"]), match["indent"]
        names = ", ".join(f"`{module}`" for module in modules[number])
        text = f"*Checks*: {names}; {bugs[number]} planted bugs."
        lines = textwrap.wrap(
            text, 120, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        return f"{number}. {match['text']}\n" + "\n".join(lines)

    return POINT.sub(point, PAGE.read_text())


def checks_page() -> str:
    """Return the page of the site with the modules of each point."""
    modules = checks()
    parts = [_CHECKS]
    for match in POINT.finditer(PAGE.read_text()):
        number, title = int(match["number"]), match["text"].split(".**")[0].lstrip("*")
        parts.append(f"\n## {number}. {title}\n\n" + "".join(f"* `{module}`\n" for module in modules[number]))
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
