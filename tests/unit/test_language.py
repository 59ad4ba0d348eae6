"""The language of docstrings, comments, messages, templates and documentation: that of docs/GLOSSARY.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kombu_opendata"
MODULES = sorted(PACKAGE.rglob("*.py"))
PAGES = [
    *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *PACKAGE.rglob("*.html"),
]  # fmt: skip
#: quotes what others wrote, and names the words that it replaces
EXEMPT = {"CHANGELOG.md", "GLOSSARY.md"}

QUESTION = re.compile(r"(What|Who|Whose|Whom|Whether|How|Where|Which|When|Why|That|(As|For|Of|To) (whom|what))\b")
AVOIDED = re.compile(
    r"\b(nobody|somebody|whoever|mend(s|ed|ing)?|for ever|go(es|ing)? on|by (itself|themselves)|at hand|so many"
    r"|what became of|at once|(is|are|was|were) told|tells?|said|says|meanwhile|anew"
    r"|(have|has|is|are) gone|of (its|their) own)\b",
    re.IGNORECASE,
)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the text of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def texts(tree: ast.Module, source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each string and of each comment that has a line of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("#"):
            yield number, line


@pytest.mark.parametrize("text", ["Whether it is open.", "What a client sent.", "To whom it belongs."])
def test_an_indirect_question_is_recognized(text: str) -> None:
    assert QUESTION.match(text)


@pytest.mark.parametrize(
    "text", ["It goes on.", "Nobody waits", "The client is told why.", "a store of its own", "Ends at once"]
)
def test_an_avoided_word_is_recognized(text: str) -> None:
    assert AVOIDED.search(text)


def test_no_docstring_opens_with_a_question() -> None:
    opened = [
        f"{path.relative_to(ROOT)}:{line} {text.splitlines()[0]}"
        for path in MODULES
        for line, text in docstrings(ast.parse(path.read_text()))
        if QUESTION.match(text)
    ]
    assert not opened, "\n".join(opened)


def test_no_string_or_comment_has_an_avoided_word() -> None:
    avoided = [
        f"{path.relative_to(ROOT)}:{line} {word.group()}"
        for path in MODULES
        for source in [path.read_text()]
        for line, text in texts(ast.parse(source), source)
        if (word := AVOIDED.search(text))
    ]
    assert not avoided, "\n".join(avoided)


def test_no_page_has_an_avoided_word() -> None:
    avoided = [
        f"{path.relative_to(ROOT)}:{number} {word.group()}"
        for path in PAGES
        if path.name not in EXEMPT
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (word := AVOIDED.search(line))
    ]
    assert not avoided, "\n".join(avoided)
