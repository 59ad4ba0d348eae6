"""Only what PySpark documents is used of it: the rest changes with each of its minor versions."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import kombu_opendata.spark

MODULES = sorted(Path(kombu_opendata.spark.__file__).parent.rglob("*.py"))
#: the modules of PySpark's API reference, as far as they matter here
DOCUMENTED = ("pyspark", "pyspark.errors", "pyspark.sql", "pyspark.sql.datasource", "pyspark.sql.types")
#: attributes by which PySpark's objects hold those of its JVM
PRIVATE = ("_jvm", "_jdf", "_jsc", "_jsparkSession", "_sc")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_module_uses_what_pyspark_does_not_document(path: Path) -> None:
    tree = ast.parse(path.read_text())

    wrong = [f"{name} of {module}" for module, name in imported(tree) if not is_documented(module, name)]
    wrong += [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in PRIVATE]
    wrong += [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in PRIVATE]
    assert wrong == []


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module and name of each import from PySpark."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pyspark":
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (("", alias.name) for alias in node.names if alias.name.split(".")[0] == "pyspark")


def is_documented(module: str, name: str) -> bool:
    """Whether it is in the module's own list of what is public; most of the errors and functions have none."""
    if module not in DOCUMENTED or name.startswith("_"):
        return False
    if (module, name) in (("pyspark.sql", "functions"), ("pyspark.sql", "types")):
        return True
    public = getattr(importlib.import_module(module), "__all__", None)
    return public is None or name in public
