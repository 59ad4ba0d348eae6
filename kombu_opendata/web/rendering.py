"""Template renderer and the filters that format values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup
from msgspec.structs import asdict

from ..client.job_calls import job_filter
from ..json_values import plain
from ..readable_text import age, counted, number, shown, shown_lines
from ..selectors.selector import is_header_name
from ..selectors.tree import identifier, quoted
from ..version import __version__

#: states of messages that have another name for the broker
STATE_NAMES = {"available": "ready", "archived_failed": "archived"}


class Renderer:
    """Renders templates: whole pages, or the part of a page that changes."""

    def __init__(self, trace_url: str = "") -> None:
        loader = jinja2.PackageLoader("kombu_opendata.web")
        self._environment = jinja2.Environment(
            loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self._environment.filters |= {
            "age": age, "bytes": byte_text, "moment": moment, "number": number, "rate": rate,
            "shown": shown, "lines": shown_lines, "seconds": seconds, "spark_points": spark_points,
            "counted": counted, "data": data, "toggled": toggled, "state_name": state_name, "job_filter": job_filter,
            "fields": asdict, "partition_filter": partition_filter,
        }  # fmt: skip
        self._environment.globals["version"] = __version__
        self._environment.globals["trace_link"] = partial(trace_link, trace_url)

    def page(self, template: str, context: Mapping[str, Any]) -> str:
        """Return a whole page."""
        return self._environment.get_template(template).render(context)

    def block(self, template: str, block: str, context: Mapping[str, Any]) -> str:
        """Return one block of a page, such as the part that changes."""
        loaded = self._environment.get_template(template)
        return "".join(loaded.blocks[block](loaded.new_context(dict(context))))


def link(root: str, path: str, **query: Any) -> str:
    """Return an address below the root path, with a query of the values that are neither None nor empty texts.

    An empty list is sent as an empty value, because a filter for no ids matches nothing.
    """
    parameters = {
        name: "" if value == [] else value for name, value in query.items() if value is not None and value != ""
    }
    return f"{root}/{path}" + (f"?{urlencode(parameters, doseq=True)}" if parameters else "")


def partition_filter(key: str, by: str) -> str:
    """Return the filter that matches the messages of a partition; empty if its key is not the value of a header."""
    is_value = key and is_header_name(by) and not re.search(r"#[0-9a-f]{16}$", key)
    return f"{identifier(by)} = {quoted(key)}" if is_value else ""


def trace_link(trace_url: str, traceparent: object) -> str:
    """Return the address of a message's trace; empty without a template of addresses, or for another text."""
    match = re.fullmatch(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", str(traceparent))
    return trace_url.replace("{trace_id}", match[1]) if match else ""


def moment(at: datetime | int | None) -> Markup:
    """Format a time, or milliseconds since the epoch; None and 0 mean no time.

    The browser shows it in the viewer's time zone, with UTC on hover.
    """
    if not at:
        return Markup("")
    utc = datetime.fromtimestamp(at / 1000, UTC) if isinstance(at, int) else at.astimezone(UTC)
    text = utc.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(utc.isoformat(), text, text)


def state_name(state: str) -> str:
    """Return the state of a message or task as users know it."""
    return STATE_NAMES.get(state, state).replace("_", " ")


def data(value: Any) -> str:
    """Return a value as JSON, for an attribute that a script reads."""
    return json.dumps(plain(value), separators=(",", ":"), default=str)


def spark_points(values: Sequence[float | None]) -> str:
    """Return the points of a line in a box of 100 × 20."""
    most = max((value for value in values if value is not None), default=0) or 1
    step = 100 / max(len(values) - 1, 1)
    return " ".join(
        f"{at * step:.4g},{19 - 18 * value / most:.3g}" for at, value in enumerate(values) if value is not None
    )


def rate(per_second: float) -> str:
    """Format a rate: whole numbers when it is large."""
    return f"{per_second:,.0f}" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}"


def seconds(duration: float) -> str:
    """Format a duration: in milliseconds if it is short, otherwise in seconds or longer units."""
    if duration < 1:
        return f"{1000 * duration:.0f} ms"
    return f"{duration:.1f} s" if duration < 60 else age(duration)


def toggled(names: tuple[str, ...], name: str) -> str:
    """Return the names, joined by commas, with ``name`` added or removed."""
    return ",".join([other for other in names if other != name] if name in names else [*names, name])


def byte_text(size: float | None) -> str:
    """Format a size in bytes with a binary unit."""
    if size is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
