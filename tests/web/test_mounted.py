"""The page in other apps, as docs/web.md shows it: served by uvicorn, below a prefix."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import httpx
import pytest

from kombu_opendata import QueueClient

from ..support.processes import Child, Children, tail, wait_until

SECONDS = 60
DOCS = Path(__file__).parents[2] / "docs" / "web.md"
#: what the examples have as their broker
SHOWN_URL = "opendata:///var/lib/app-queue"
DJANGO = "SECRET_KEY = 'x'\nROOT_URLCONF = 'shop.settings'\nurlpatterns = []\n"


def example(heading: str) -> str:
    """The example below a heading."""
    found = re.search(rf"^#### {heading}$.*?^```python\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


class Host(Child):
    """An app of somebody else, in which the page is mounted."""

    def __init__(self, folder: Path, code: str) -> None:
        folder.joinpath("host.py").write_text(code)
        folder.joinpath("shop").mkdir()
        folder.joinpath("shop/settings.py").write_text(
            "SECRET_KEY = 'x'\nROOT_URLCONF = 'shop.settings'\nurlpatterns = []\n"
        )
        line = [sys.executable, "-m", "uvicorn", "host:app", "--port", "0"]
        super().__init__(line, folder / "host.log", cwd=folder)
        self.url = ""
        wait_until(self._announced, SECONDS, lambda: f"the app listens:\n{tail(self.log)}")

    def _announced(self) -> bool:
        self.check()
        found = re.search(r"http://\S+:\d+", self.log.read_text(errors="replace"))
        self.url = found[0] if found else ""
        return bool(found)


@pytest.mark.parametrize("heading", ["Starlette", "FastAPI", "Django"])
def test_it_works_below_a_prefix(
    heading: str, store_folder: Path, broker_url: str, started: Children, tmp_path: Path
) -> None:
    code = example(heading)
    assert SHOWN_URL in code
    started.add(host := Host(tmp_path, code.replace(SHOWN_URL, broker_url)))
    with QueueClient(broker_url) as client, httpx.Client(base_url=host.url, timeout=SECONDS) as site:
        client.create("mail")
        client.declare_exchange("letters")
        page = site.get("/queues/")
        assert page.status_code == 200
        links = re.findall(r'(?:href|src|action|hx-get|hx-sse:connect)="([^"]*)"', page.text)
        inside = [link for link in links if not link.startswith(("#", "http"))]
        assert len(inside) > 10
        assert [link for link in inside if not link.startswith("/queues/")] == []
        for link in inside:
            if "/static/" in link:
                assert site.get(link).status_code == 200
        assert site.get("/queues/exchange", params={"name": "letters"}).status_code == 200
        gone = site.get("/queues/exchange", params={"name": "nope"})
        assert gone.status_code == 404
        assert 'href="/queues/"' in gone.text
        described = site.get("/queues/api/v1/openapi.json").json()
        assert described["servers"] == [{"url": "/queues/api/v1"}]
        assert site.get("/queues/api/v1/exchange", params={"name": "letters"}).json()["info"]["name"] == "letters"
        purged = site.post("/queues/api/v1/actions/purge", json={"queue": "mail"})
        assert purged.status_code == 200
        assert site.get("/elsewhere").status_code == 404
        with site.stream("GET", "/queues/workers", params={"live": "1"}) as stream:
            assert next(line for line in stream.iter_lines() if line.startswith("data:"))
            assert host.terminate(SECONDS) in (0, -15)  # uvicorn raises the signal again, after it has ended in order
    log = host.log.read_text()
    assert "Traceback" not in log
