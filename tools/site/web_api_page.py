"""A hook of mkdocs: the page of all routes of the web API, from its OpenAPI description."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from kombu_opendata.web.app import api_description

INTRODUCTION = """# All routes of the web API

Below `/api/v1`. [The web API](../web-api.md) has examples, and what all routes share. A running web UI has the whole
description, with all types, at `/api/v1/openapi.json`; this table is made from it.

"""


def routes_page(description: dict[str, Any]) -> str:
    """One table of what can be read, one of what can be done."""
    rows: dict[str, list[str]] = {"get": [], "post": []}
    for path, ways in sorted(description["paths"].items()):
        for method, call in ways.items():
            if not path.endswith("/preview"):
                rows[method].append(f"| `{path}` | {_given(call, description)} | {_meaning(call)} |")
    head = "| route | parameters | what it does |\n|---|---|---|\n"
    look = "## To look (`GET`)\n\n" + head + "\n".join(rows["get"])
    act = (
        "## To act (`POST`)\n\nEach has a route with `/preview` after its name, which says what the action would "
        "concern and changes nothing.\n\n" + head + "\n".join(rows["post"])
    )
    return f"{INTRODUCTION}{look}\n\n{act}\n"


def _given(call: dict[str, Any], description: dict[str, Any]) -> str:
    """The parameters of a query, or the fields of a body; those that must be given are bold."""
    found = [(one["name"], one.get("required", False)) for one in call.get("parameters", ())]
    content = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in content:
        schema = description["components"]["schemas"][content["$ref"].rpartition("/")[2]]
        found += [(name, name in schema.get("required", ())) for name in schema.get("properties", ())]
    return ", ".join(f"**`{name}`**" if needed else f"`{name}`" for name, needed in found)


def _meaning(call: dict[str, Any]) -> str:
    text = call.get("description") or call["summary"]
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    files.append(File.generated(config, "reference/web-api-routes.md", content=routes_page(api_description())))
    return files
