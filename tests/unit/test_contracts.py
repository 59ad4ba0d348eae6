"""Each import contract of pyproject.toml is kept, and is broken by an import that it forbids."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

#: contract, module that is changed, import that is added to it
BROKEN = [
    ("acyclic", "selectors/tree.py", "from .compiler import compile_selector"),
    ("acyclic", "broker/delivery/lease_tokens.py", "def late() -> None:\n    from . import session_lifecycle"),
    ("package", "staging/job.py", "if TYPE_CHECKING:\n    from ..storage.clock import Clock"),
    ("package", "selectors/tree.py", "from ..protocol import framing"),
    ("storage", "storage/state/store_state.py", "from ..commit.commits import Commits"),
    ("storage", "storage/history/service.py", "from ..operations.redrive import Redrive"),
    ("storage", "storage/cellar.py", "#: a module that has no place in the layers"),
    ("broker", "broker/delivery/lease_tokens.py", "from ..instance.instance import Instance"),
    ("client", "client/socket/poll.py", "from ..session.session import Session"),
    ("offline", "offline/files/database_files.py", "from .. import verify"),
    ("spark", "spark/encode/plan.py", "from .. import submit"),
    ("cli", "cli/messages/send.py", "from ..queues import top"),
    ("web", "web/reports/paging.py", "from .. import visit"),
    ("verbs", "cli/messages/send.py", "from . import peek"),
    ("light-client", "client/connection_options.py", "import asyncio"),
    ("light-client", "protocol/framing.py", "import uvloop"),
    ("light-client", "transport/channel.py", "from ..storage.clock import Clock"),
    ("light-client", "protocol/tcp.py", "from slatedb import uniffi"),
    ("storage-alone", "storage/records/keys.py", "import socket"),
    ("storage-alone", "errors.py", "import kombu"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package and of its contracts."""
    folder = tmp_path_factory.mktemp("contracts")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "kombu_opendata", folder / "kombu_opendata", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture
def package(copy: Path) -> Iterator[Path]:
    """The copied package, in which a test may change or make one module."""
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*.py")}
    yield copy / "kombu_opendata"
    for path in copy.rglob("*.py"):
        if path not in before:
            path.unlink()
        elif path.stat().st_mtime_ns != before[path]:
            shutil.copy2(ROOT / path.relative_to(copy), path)


def contracts() -> list[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return [contract["id"] for contract in tomllib.load(file)["tool"]["importlinter"]["contracts"]]


def lint_imports(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(LINT_IMPORTS), "--no-cache", "--no-logo", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_all_contracts_are_kept(copy: Path) -> None:
    told = lint_imports(copy)
    assert told.returncode == 0, told.stdout
    assert f"{len(contracts())} kept, 0 broken" in told.stdout


@pytest.mark.parametrize(("contract", "module", "line"), BROKEN)
def test_an_import_against_a_contract_breaks_it(contract: str, module: str, line: str, package: Path) -> None:
    with (package / module).open("a") as file:
        file.write(f"\n\n{line}\n")
    told = lint_imports(package.parent, "--contract", contract)
    assert told.returncode == 1, told.stdout
    assert "0 kept, 1 broken" in told.stdout


def test_each_contract_is_tried() -> None:
    assert {contract for contract, _, _ in BROKEN} == set(contracts())
