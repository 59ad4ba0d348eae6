"""The hooks that make the documentation's site: tools/site."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from kombu_opendata.broker.metrics import metric_catalogue
from kombu_opendata.configuration.options import public_specs
from kombu_opendata.offline.findings import CODES
from kombu_opendata.protocol.messages import OPERATIONS, BrokerMessage, ClientMessage
from kombu_opendata.protocol.queue_arguments import KNOWN
from kombu_opendata.storage import records
from kombu_opendata.storage.effects.codec import Stored
from kombu_opendata.storage.records.kinds import RecordKind

from ..support.command_lines import VERBS

ROOT = Path(__file__).resolve().parents[2]


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / "site" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = hook("reference_pages")


def test_every_option_and_every_metric_has_its_place() -> None:
    assert re.findall(r"(?m)^## `([^`]+)`", PAGES.options_page()) == [spec.flag for spec in public_specs()]
    rows = re.findall(r"(?m)^\| `opendata_queue_(\w+)` \|", PAGES.metrics_page())
    assert rows == [metric.name for metric in metric_catalogue.ALL]
    named = set(re.findall(r'"([a-z_]+)", "[A-Z]', Path(metric_catalogue.__file__).read_text()))
    assert len(named) > 40
    assert named <= set(rows)


def test_every_operation_has_its_permission() -> None:
    page = PAGES.operations_page()
    titles = [title for row in re.findall(r"(?m)^\| ([^–].*?) \|", page)[1:] for title in row.split("; ")]
    assert sorted(titles) == sorted(message.operation.title for message in OPERATIONS)
    joined = "purge a queue; settle messages by their ids; delay a partition; see the partitions of a queue"
    assert f"| {joined} | `read` on the queue, or `operator` |" in page


def test_every_message_has_its_number_and_fields() -> None:
    page = PAGES.messages_page()
    messages = (*get_args(ClientMessage), *get_args(BrokerMessage))
    shown = {(int(tag), name) for tag, name in re.findall(r"(?m)^\| (\d+) \| `(\w+)` \|", page)}
    assert shown == {(message.__struct_config__.tag, message.__name__) for message in messages}
    assert re.search(r"(?m)^\| 3 \| `Publish` \| .* \| rid, seq, exchange, routing_key, envelope", page)


def test_each_effect_has_a_number_of_its_own_and_a_row() -> None:
    numbers = [int(number) for number in re.findall(r"(?m)^\| (\d+) \| `\w+` \|", PAGES.effects_page())]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == len(get_args(Stored)) > 30
    assert re.search(r"(?m)^\| 4 \| `AckEffect` \| .+ \| queue, at_ms, pairs, runs\? \|$", PAGES.effects_page())


def test_every_module_of_records_has_its_layouts() -> None:
    page = PAGES.records_page()
    assert "| message id | u64 |" in page
    keys = re.findall(r"(?m)^\| `01 .+` \| (.+) \| .+ \|$", page)
    assert sorted(keys) == sorted(kind.value for kind in RecordKind)
    assert "\n| `format` | int | " in page
    assert "\n| `lengths` | list[int] | " in page
    assert "| `01 24 <space u8> <run u64> <page u16>` | history page | ours |" in page
    modules = [
        one
        for one in vars(records).values()
        if isinstance(one, ModuleType) and one not in (records.keys, records.kinds)
    ]
    assert len(modules) > 15
    assert [one.__name__ for one in modules if (one.__doc__ or "").partition("\n")[0].rstrip(".") not in page] == []


def test_every_queue_argument_has_a_row() -> None:
    rows = re.findall(r"(?m)^\| `([\w-]+)` \| (.+?) \| .* \| (.+?) \|$", PAGES.arguments_page())
    assert [name for name, *_ in rows] == [argument.name for argument in KNOWN]
    assert {name for name, _, altered in rows if altered == "refused"} == {a.name for a in KNOWN if a.cannot_alter}


def test_the_tables_and_options_for_spark_are_listed() -> None:
    page = PAGES.spark_page()
    for text in (
        "| `attempts` | attempt_id long, ",
        "| `first_id`, `last_id`, `gte`",
        "`task_id_column`",
        "payload* binary",
    ):
        assert text in page
    assert "\n\n| Spark type |" in page
    source = ast.parse((ROOT / "kombu_opendata" / "spark" / "source.py").read_text())
    options = {
        node.value
        for assigned in source.body
        if isinstance(assigned, ast.Assign) and getattr(assigned.targets[0], "id", "") in ("_READ", "_STREAM")
        for node in ast.walk(assigned)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {"store", "failOnDataLoss"} < options
    assert {option for option in options if f"`{option}`" not in page} == set()


def test_the_calls_of_peers_are_listed() -> None:
    assert re.findall(r"(?m)^## (.+)\n\n\|", PAGES.peer_calls_page()) == ["pgmq", "pgqrs"]


def test_the_modules_that_explain_a_mechanism_are_a_page() -> None:
    page = PAGES.mechanisms_page()
    for module in ("broker/standby/bucket_active_role.py", "storage/commit/power_loss.py", "staging/batch_format.py"):
        assert f"`{module}`" in page


def test_every_finding_has_a_row() -> None:
    rows = re.findall(r"(?m)^\| `([\w-]+)` \| (\w+) \| (.+?) \| (.+?) \|$", PAGES.findings_page())
    assert {code: rest for code, *rest in rows} == {
        code: [kind.severity.value, kind.meaning, kind.remedy] for code, kind in CODES.items()
    }


def test_every_route_of_the_pages_api_has_a_row() -> None:
    page = hook("web_api_page")
    description = page.api_description()
    rows = set(re.findall(r"(?m)^\| `([^`]+)` \|", page.routes_page(description)))
    assert rows == {path for path in description["paths"] if not path.endswith("/preview")}
    assert "| `/exchange` | **`name`**, `search`, `page` |" in page.routes_page(description)


def test_the_benchmark_data_has_every_sample() -> None:
    page = hook("benchmark_data_page").data_page()
    samples = json.loads((ROOT / "docs" / "benchmarks" / "samples.json").read_text())
    series = {(key, name) for run in samples.values() for key, name, _values in run["samples"] if key != "import.kombu"}
    rounds = page[page.index("## Rounds") : page.index("## What was measured")]
    assert len(re.findall(r"(?m)^\| .* \| \d+ \|$", rounds)) == len(series)


def test_the_page_on_compatibility_is_current() -> None:
    tool = hook("compatibility_page")
    assert tool.page() == tool.PAGE.read_text(), "run: python tools/site/compatibility_page.py"


ROWS = {
    "passes": ("celery", "def test_it(): pass"),
    "skips": ("celery", "def test_it(): pytest.skip('no server')"),
    "marked": ("celery", "@pytest.mark.skipif(True, reason='not here')\ndef test_it(): pass"),
    "module": ("celery", "pytest.skip('no module', allow_module_level=True)"),
    "version": ("kombu", "def test_it(): pass"),
}


def test_a_row_of_the_page_is_proven_by_tests_that_run_with_its_version(tmp_path: Path) -> None:
    for name, version in {"celery": hook("compatibility_page").extra_versions()["celery"], "kombu": "4.6"}.items():
        (folder := tmp_path / f"{name}-{version}.dist-info").mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    hooks = "pytest_make_collect_report, pytest_runtest_makereport, versions_of_the_page"
    (tmp_path / "conftest.py").write_text(f"from tests.downstream.conftest import {hooks}")
    for name, (package, program) in ROWS.items():
        row = f"COMPATIBILITY = Row(package={package!r}, tried='', result='Works.')"
        imports = "import pytest\nfrom tests.downstream.compatibility import Row"
        (tmp_path / f"test_{name}.py").write_text(f"{imports}\n{row}\n{program}\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--continue-on-collection-errors"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run([*command, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert "= 1 failed, 1 passed, 3 errors in" in run.stdout, run.stdout
    for failure in ("Skipped: no server", "Skipped: not here", "Skipped: no module"):
        assert f".py must prove its rows of docs/compatibility.md. {failure}" in run.stdout
    assert "docs/compatibility.md has other versions" in run.stdout


def test_the_page_on_compatibility_has_each_setting_of_the_project_with_all_packages() -> None:
    settings = (ROOT / "tests/downstream/django_checks/observed.py").read_text()
    names = set(re.findall(r"(?m)^CELERY_\w+", settings))
    assert "import *" not in settings
    text = (ROOT / "docs/compatibility.md").read_text().partition("## All of it in one project")[2]
    assert set(re.findall(r"CELERY_\w+", text)) == names


def test_every_example_and_all_of_deploy_is_a_page() -> None:
    folders = set(hook("repository_pages").FOLDERS)
    examples = {f"examples/{readme.parent.name}" for readme in (ROOT / "examples").glob("*/README.md")}
    assert {f"deploy/{each.name}" for each in (ROOT / "deploy").iterdir() if each.is_dir()} | examples == folders


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("README.md", "index.md"),
        ("docs/cli.md", "cli.md"),
        ("CONTRIBUTING.md", "repository/CONTRIBUTING.md"),
        ("pyproject.toml", "repository/pyproject.toml.md"),
        ("examples/quickstart", "repository/examples/quickstart/README.md"),
        ("examples/monitoring/alerts.yml", "repository/examples/monitoring/README.md#file-alerts-yml"),
    ],
)
def test_a_link_leads_to_a_page_of_the_site(path: str, page: str) -> None:
    assert hook("repository_pages").site_path(path) == page


def test_what_code_hosts_read_differently_is_rewritten() -> None:
    text = "1. one\n\n       code of one\n2. two\n\n* a\n  b\n\nend\n  end\n\n| `a \\| b` | c \\| d |"
    told = hook("markdown_dialect").on_page_markdown(text)
    assert told == "1. one\n\n        code of one\n\n2. two\n\n* a\n    b\n\nend\n  end\n\n| `a | b` | c \\| d |"


def test_the_pages_palette_chooses_one_of_two_pictures() -> None:
    text = """<picture>
  <source media="(prefers-color-scheme: dark)" srcset="a/b-dark.svg">
  <img alt="a curve" src="a/b-light.svg">
</picture>"""
    told = hook("markdown_dialect").on_page_markdown(text)
    assert told == "![a curve](a/b-light.svg#only-light)\n![a curve](a/b-dark.svg#only-dark)"


def test_a_docstring_becomes_markdown() -> None:
    text = (
        "Sends :class:`~app.Message`.\n\nFeatures\n========\nWhat it has:\n* one\n\n=====  ====\nname   kind\n"
        "=====  ====\n``a``  b|c\n       d\n=====  ====\n\nArgs:\n    x, y: where\n        it is."
    )
    assert hook("docstrings").markdown(text) == (
        "Sends :class:`~app.Message`.\n\n#### Features\nWhat it has:\n\n* one\n\n| name | kind |\n|---|---|\n"
        "| ``a`` | b\\|c d |\n\nArgs:\n    x: where\n        it is.\n    y: where\n        it is."
    )


def test_the_example_of_every_command_is_found() -> None:
    find = hook("command_examples")._command
    assert [verb for verb, command in VERBS.items() if find(verb.split()) is not command] == []
