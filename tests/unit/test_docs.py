"""The tables of docs/settings.md say what the code does."""

from __future__ import annotations

import dataclasses
import inspect
import re
from fnmatch import filter as fnmatch_filter
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from celery.app.defaults import DEFAULTS
from kombu.transport import TRANSPORT_ALIASES

import kombu_opendata  # noqa: F401 - registers the URLs
from kombu_opendata import url
from kombu_opendata.broker.instance.maintenance import DUTIES
from kombu_opendata.celery_integration import setup_maintenance
from kombu_opendata.client.connection_options import BROKER_OPTIONS, SECONDS, TRANSPORT_OPTIONS
from kombu_opendata.client.connection_options import DEFAULTS as CLIENT
from kombu_opendata.client.foreign_options import UNUSED_BY_RESULTS, UNUSED_BY_WORKERS
from kombu_opendata.client.socket.connect import TLS_OPTIONS
from kombu_opendata.configuration.options import public_specs
from kombu_opendata.transport import Channel

DOCS = Path(__file__).resolve().parents[2] / "docs"
SETTINGS = (DOCS / "settings.md").read_text()
PAGES = [
    *(
        str(page.relative_to(DOCS))
        for folder in ("", "coming-from", "upstream")
        for page in sorted((DOCS / folder).glob("*.md"))
    ),
    "../README.md",
    "../CHANGELOG.md",
    "../CONTRIBUTING.md",
    "../SECURITY.md",
    "../deploy/README.md",
    "../examples/airflow/README.md",
]


#: pages of the site that tools/site makes
GENERATED = re.findall(
    r'"(reference/[\w-]+\.md)"', "".join(p.read_text() for p in (DOCS.parent / "tools/site").glob("*.py"))
)


def section(title: str) -> str:
    """The text below a heading, to the next one of any level."""
    return re.split(rf"(?m)^#+ {re.escape(title)}$", SETTINGS)[1].split("\n#")[0]


def tables(text: str) -> list[list[dict[str, str]]]:
    """All tables as rows of cells by heading."""
    found = []
    for block in re.findall(r"(?m)(?:^\|.*\n?)+", text):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.strip().splitlines()]
        found.append([dict(zip(lines[0], cells, strict=True)) for cells in lines[2:]])
    return found


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def defaults_by_name(rows: list[dict[str, str]], column: str) -> dict[str, str]:
    """Name → default; a row may have several of both."""
    given: dict[str, str] = {}
    for row in rows:
        several = names(row[column])
        parts = row["default"].split(", ") if len(several) > 1 else [row["default"]]
        given |= dict(zip(several, parts if len(parts) == len(several) else parts * len(several), strict=True))
    return given


def text(value: Any) -> str:
    """A default as a table shows it; times without a needless fraction."""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def test_every_celery_setting_exists_and_its_default_is_celerys() -> None:
    shown: dict[str, str] = {}
    for title in ("Connection", "Workers", "Tasks", "Results"):
        (rows,) = tables(section(title))
        shown |= defaults_by_name(rows, "setting")
    assert len(shown) > 25
    in_words = {
        "broker_url", "broker_failover_strategy", "task_publish_retry_policy",
        "accept_content", "result_expires",
    }  # fmt: skip
    for name, default in shown.items():
        assert name in DEFAULTS, f"{name} is no setting of this Celery"
        actual = DEFAULTS[name]
        if name not in in_words:
            assert default == ("none" if actual is None else f"`{actual}`"), name
    assert DEFAULTS["result_expires"].total_seconds() == float(shown["result_expires"].strip("`"))
    assert DEFAULTS["accept_content"] == ("json",)
    assert DEFAULTS["task_publish_retry_policy"]["max_retries"] == 3


OF_BROKERS = re.compile(
    r"(broker|redis|control|event|result_backend|result_exchange|task_create_missing|task_default|task_publish|task_queue"
    r"|worker_enable)_|(result_persistent|result_chord_retry_interval|task_queues|task_routes|worker_(detect_quorum_queues"
    r"|direct|disable_prefetch|eta_task_limit|prefetch_multiplier))$"
)


def test_every_setting_of_celery_that_concerns_the_broker_is_there() -> None:
    listed = re.split(r"(?m)^## ", SETTINGS)[1]
    without_effect, works = re.findall(r"(?ms)^These (?:have no effect|work as).*?\n\n", listed)
    assert set(names(without_effect)) == {"broker_login_method", *UNUSED_BY_WORKERS, *UNUSED_BY_RESULTS}
    patterns = names(listed)
    concerned = {name for name in DEFAULTS if OF_BROKERS.match(name)}
    assert len(concerned) > 60
    assert {name for name in concerned if not any(fnmatch(name, pattern) for pattern in patterns)} == set()
    working = {pattern: set(fnmatch_filter(DEFAULTS, pattern)) for pattern in names(works)}
    assert [pattern for pattern, found in working.items() if not found or found & set(names(without_effect))] == []


def test_every_transport_option_is_there_with_its_default() -> None:
    (rows,) = tables(section("Transport options"))
    shown = defaults_by_name(rows, "option")
    assert shown.pop("consumer_name") == "`host:pid`"
    assert set(shown) | {"consumer_name"} == set(TRANSPORT_OPTIONS), "all that the transport takes"
    assert shown.pop("publish_mode") == "`confirm`"
    assert not CLIENT.pipelined
    options = (*SECONDS, "pipeline_depth", "task_outcomes")
    assert shown.pop("broker_options") == "none"
    assert not CLIENT.broker_options
    assert [shown.pop(name) for name in Channel.from_transport_options] == ["`base64`", "none"]
    assert shown == {name: text(getattr(CLIENT, name)) for name in options}
    shown["broker_options"] = "none"
    mentioned = next(row["meaning"] for row in rows if "broker_options" in row["option"])
    assert names(mentioned) == list(BROKER_OPTIONS)
    fields = {field.name for field in dataclasses.fields(CLIENT)}
    elsewhere = {
        "name", "user", "secret", "tls", "connect_timeout", "heartbeat", "pipelined", "may_start", "patient", "act_as",
    }  # fmt: skip
    assert fields - set(shown) == elsewhere, "given by other settings"


def test_every_tls_option_is_there() -> None:
    assert set(names(section("TLS"))) - {"True"} == TLS_OPTIONS


def test_every_url_scheme_is_there() -> None:
    (rows,) = tables(section("URL"))
    schemes = {name for row in rows for name in names(row["part"])}
    stores = url.STORE_SCHEMES | {f"opendata+{name}" for name in url.STORE_SCHEMES}
    ours = {name for name, module in TRANSPORT_ALIASES.items() if module.startswith("kombu_opendata.")}
    assert schemes == ours - stores
    shown = {row["part"]: row["default"] for row in rows}
    assert shown["PORT"] == text(url.DEFAULT_PORT)
    assert shown["INSTANCE"] == text(url.DEFAULT_INSTANCE)


def test_the_options_of_the_brokers_section_exist() -> None:
    flags = {spec.flag for spec in public_specs()}
    assert set(re.findall(r"`(--[a-z-]+)`", section("The broker's options"))) <= flags | {"--help"}


def test_maintenance_is_as_its_tables_say() -> None:
    arguments, duties = tables(section("Maintenance"))
    parameters = {
        name: p.default for name, p in inspect.signature(setup_maintenance).parameters.items() if name != "app"
    }
    shown = defaults_by_name(arguments, "argument")
    assert set(shown) == set(parameters)
    assert shown["every"] == text(parameters["every"])
    assert shown["timeout"] == text(parameters["timeout"])
    assert tuple(names(row["duty"])[0] for row in duties) == DUTIES


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    content = (DOCS / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", content):
        path = (DOCS / page).parent.joinpath(target).resolve()
        assert path.exists() or path.relative_to(DOCS).as_posix() in GENERATED, target
    for anchor in re.findall(r"\]\(#([^)]+)\)", content):
        headings = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"(?m)^#+ (.+)$", content)}
        assert anchor in headings, anchor


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "../CONTRIBUTING.md"])
def test_the_modules_and_folders_of_a_page_exist(page: str) -> None:
    found = re.findall(r"`([\w./]+(?:/|\.py|\.toml|\.yaml))`", (DOCS / page).read_text())
    assert found
    places = [DOCS.parent / "kombu_opendata", DOCS.parent]
    assert [path for path in found if not any((place / path).exists() for place in places)] == []


def test_the_page_on_alerts_says_what_to_do_at_each() -> None:
    alerts = (DOCS.parent / "examples" / "monitoring" / "alerts.yml").read_text()
    page = (DOCS / "alerts.md").read_text()
    assert re.findall(r"(?m)^## (.+)$", page) == re.findall(r"(?m)^ +- alert: (\w+)$", alerts)
