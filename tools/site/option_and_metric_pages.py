"""A hook of mkdocs: the pages of the broker's options and metrics, from the code's one definition of each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from kombu_opendata.broker.metrics import catalogue
from kombu_opendata.configuration.options import public_specs
from kombu_opendata.configuration.specs import Spec

OPTIONS = """# The broker's options

Each option of `opendata-queue broker` can be given on the command line, in a file or in the environment;
[configuration](../configuration.md) says how. [Settings](../settings.md#the-brokers-options) explains them together
with those of Celery and of clients. This page is made from their definition in the code.

"""
METRICS = """# All metrics

A broker serves them with `--metrics`; [monitoring](../monitoring.md) explains what to watch, and which alerts there
are. This page is made from their definition in the code.

"""


def options_page() -> str:
    return OPTIONS + "\n".join(_option(spec) for spec in public_specs())


def _option(spec: Spec) -> str:
    kind = spec.option.kind
    values = " ".join(text for text in (f"`{kind.metavar}`" if kind.metavar else "no value", kind.allowed) if text)
    if spec.option.repeated:
        values += "; may be given several times"
    default = "must be given" if spec.required else spec.described(spec.default) or "none"
    if spec.default is False:
        default = "off"
    rows = {
        "Command line": f"`{spec.flag}`",
        "File": f"`{spec.key}`",
        "Environment": f"`{spec.variable}`",
        "Value": values,
        "Default": default if spec.required or default in ("none", "off") else f"`{default}`",
    }
    table = "\n".join(f"| {name} | {_cell(value)} |" for name, value in rows.items())
    return f"## `{spec.flag}` {{ #{spec.key} }}\n\n{_sentence(spec.option.help)}\n\n| | |\n|---|---|\n{table}\n"


def metrics_page() -> str:
    parts = [METRICS, "| metric | kind | meaning |\n|---|---|---|\n"]
    for metric in sorted(all_metrics()):
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        meaning = _cell(metric.help) + (f" By {labels}." if labels else "")
        parts.append(f"| `{catalogue.PREFIX}{metric.name}` | {metric.kind} | {meaning} |\n")
    return "".join(parts)


def all_metrics() -> set[catalogue.Metric]:
    """Every metric that is a value of the catalogue, or in one of its collections."""
    return set(_metrics(vars(catalogue).values()))


def _metrics(values: Iterable[Any]) -> Iterable[catalogue.Metric]:
    for value in values:
        if isinstance(value, catalogue.Metric):
            yield value
        elif isinstance(value, dict):
            yield from _metrics(value.values())
        elif isinstance(value, (tuple, list)):
            yield from _metrics(value)


def _cell(text: str) -> str:
    """A cell of a table; the pipes of code need no escape."""
    return text if "`" in text else text.replace("|", "\\|")


def _sentence(text: str) -> str:
    text = re.sub(r"(?<!\S)(--?[a-z][\w-]+|/[a-z]+|[a-z0-9]+:[/A-Z…][^\s,]*)", r"`\1`", text)
    return f"{text[:1].upper()}{text[1:]}."


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    files.append(File.generated(config, "reference/broker-options.md", content=options_page()))
    files.append(File.generated(config, "reference/metrics.md", content=metrics_page()))
    return files
