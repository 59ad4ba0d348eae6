"""A hook of mkdocs: files outside `docs/` become pages, so that links to them work in the repository and on the site.

The README is the front page. A page of Markdown, such as CONTRIBUTING.md, is a page at `repository/`. A folder of
`FOLDERS`, such as `examples/quickstart`, is one page: its README, then each of its files. Links are written as the
repository has them; `on_page_markdown` lets them lead to these pages.
"""

from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
FRONT = "README.md"
PAGES = (
    *("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "RELEASING.md", "SECURITY.md"),
    *("deploy/README.md", "pyproject.toml"),
)
FOLDERS = (
    "deploy/docker", "deploy/kubernetes", "deploy/systemd", "examples/airflow", "examples/beat_app", "examples/canvas",
    "examples/django_app", "examples/fair_tenants", "examples/fastapi_app", "examples/monitoring",
    "examples/quickstart", "examples/spark", "examples/unique",
)  # fmt: skip
LANGUAGES = {
    ".conf": "ini", ".json": "json", ".py": "python", ".service": "ini", ".timer": "ini", ".toml": "toml",
    ".yaml": "yaml", ".yml": "yaml",
}  # fmt: skip
#: a larger file, such as a dashboard, is not for reading
LARGEST = 20_000
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"(?ms)^( *)(```+).*?^\1\2 *$")


def site_path(path: str) -> str:
    """Where the site has a file or a folder of the repository, as a path of a page's source, with an anchor.

    Raises:
        KeyError: the site does not have it.
    """
    if path == FRONT:
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in PAGES:
        return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"
    for folder in FOLDERS:
        if path in (folder, f"{folder}/README.md"):
            return f"repository/{folder}/README.md"
        if path.startswith(f"{folder}/"):
            return f"repository/{folder}/README.md#{anchor(path.removeprefix(f'{folder}/'))}"
    raise KeyError(path)


def anchor(file: str) -> str:
    """The anchor of a file, or of the first one of a folder, in the page of its folder."""
    return "file-" + re.sub(r"\W+", "-", file).strip("-").lower()


@cache
def sources() -> dict[str, tuple[str, str]]:
    """Path of a page → its path in the repository, and its text."""
    found = {"index.md": (FRONT, (ROOT / FRONT).read_text())}
    for path in PAGES:
        text = (ROOT / path).read_text()
        found[site_path(path)] = (path, text if path.endswith(".md") else f"# {path}\n\n{_code(ROOT / path)}")
    for folder in FOLDERS:
        found[site_path(folder)] = (f"{folder}/README.md", _folder_page(ROOT / folder))
    return found


def _folder_page(folder: Path) -> str:
    readme = folder / "README.md"
    parts = [readme.read_text() if readme.exists() else f"# The files of {folder.relative_to(ROOT)}\n"]
    shown: set[str] = set()
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        if file.is_dir() or file == readme or "__pycache__" in inside.parts or not file.stat().st_size:
            continue
        # The first file of a folder also answers to the folder's name.
        parents = [anchor(str(parent)) for parent in inside.parents if parent.name and str(parent) not in shown]
        shown |= {str(parent) for parent in inside.parents}
        parts += [f'<a id="{parent}"></a>\n' for parent in parents]
        parts.append(_listed(str(inside), file, anchor(str(inside))))
    return "\n".join(parts)


def _listed(name: str, file: Path, mark: str) -> str:
    if file.stat().st_size > LARGEST:
        return f"## `{name}` {{ #{mark} }}\n\n{file.stat().st_size:,} bytes, in the repository.\n"
    return f"## `{name}` {{ #{mark} }}\n\n{_code(file)}"


def _code(file: Path) -> str:
    language = "docker" if file.name == "Dockerfile" else LANGUAGES.get(file.suffix, "text")
    return f"````{language}\n{file.read_text().rstrip()}\n````\n"


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    for path, (_source, text) in sources().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to the site's pages; those that code blocks show stay."""
    source = page.file.src_uri
    here = sources()[source][0] if source in sources() else f"docs/{source}"

    def moved(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), match[1]))
        if (ROOT / path).is_dir() and path.startswith("docs/"):
            path += "/README.md"
        try:
            found, _, mark = site_path(path).partition("#")
        except KeyError:
            return match[0]  # the strict build refuses it
        mark = match[2] or (f"#{mark}" if mark else "")
        return posixpath.relpath(found, posixpath.dirname(source) or ".") + mark

    pieces, end = [], 0
    for block in FENCE.finditer(markdown):
        pieces += [LINK.sub(moved, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*pieces, LINK.sub(moved, markdown[end:])])
