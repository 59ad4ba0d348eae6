"""What a release needs: `python tools/release.py v1.2.3` fails unless this checkout can be released under that tag."""

from __future__ import annotations

import re
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def reasons_against(tag: str, version: str, changelog: str) -> list[str]:
    """Return why a checkout can't be released: one sentence for each reason.

    Args:
        tag: the tag of the release, such as `v1.2.3`.
        version: the version of the package.
        changelog: the text of CHANGELOG.md.
    """
    reasons = []
    if tag != f"v{version}":
        reasons.append(f"The tag {tag} is not v{version}, the version in kombu_opendata/version.py.")
    sections = re.findall(r"(?m)^## \[([^]]+)\](?: - (\d{4}-\d\d-\d\d))?$", changelog)
    if not [name for name, day in sections if name == version and _is_date(day)]:
        reasons.append(f"CHANGELOG.md has no section with a date for {version}: ## [{version}] - YYYY-MM-DD")
    unreleased = re.search(r"(?ms)^## \[Unreleased\]\n(.*?)(?=^## \[|\Z)", changelog)
    if unreleased and unreleased[1].strip():
        reasons.append("CHANGELOG.md has unreleased changes. Move them to the section of the release.")
    return reasons


def _is_date(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


if __name__ == "__main__":
    version = re.search(r'__version__ = "([^"]+)"', (ROOT / "kombu_opendata/version.py").read_text())
    reasons = reasons_against(sys.argv[1], version[1] if version else "", (ROOT / "CHANGELOG.md").read_text())
    sys.exit("\n".join(reasons) or None)
