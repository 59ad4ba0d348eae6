"""What pyproject.toml can't say: the text for a package index is the README without its links to files beside it."""

from __future__ import annotations

import re
from pathlib import Path

_README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")


def for_an_index(readme: str) -> str:
    """The README up to its list of pages, with the text of links that only a clone can follow."""
    text = re.sub(r"(?m)^!\[.*\n", "", readme.split("\n## Documentation\n")[0])
    text = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", text)
    return f"{text}\n## Documentation\n\nThe pages named above are in the folder `docs` of the source distribution.\n"


if __name__ == "__main__":
    from setuptools import setup

    setup(long_description=for_an_index(_README), long_description_content_type="text/markdown")
