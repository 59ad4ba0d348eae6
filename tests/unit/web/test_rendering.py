"""The link of a message to its trace."""

from __future__ import annotations

import pytest

from kombu_opendata.web.rendering import trace_link

URL = "https://tempo/trace/{trace_id}?tab=spans"
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("url", "header", "link"),
    [
        (URL, f"00-{TRACE}-b7ad6b7169203331-01", f"https://tempo/trace/{TRACE}?tab=spans"),
        ("", f"00-{TRACE}-b7ad6b7169203331-01", ""),
        (URL, "javascript:alert(1)", ""),
        (URL, f"00-{TRACE}-b7ad6b7169203331", ""),
        (URL, 7, ""),
        (URL, None, ""),
    ],
)
def test_the_address_of_a_trace(url: str, header: object, link: str) -> None:
    assert trace_link(url, header) == link
