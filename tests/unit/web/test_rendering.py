"""The link of a message to its trace, and the filter of a partition."""

from __future__ import annotations

import pytest

from kombu_opendata.storage.state.partitions import bounded_key
from kombu_opendata.web.rendering import partition_filter, trace_link

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


@pytest.mark.parametrize(
    ("key", "by", "where"),
    [
        ("o'neill", "tenant", "tenant = 'o''neill'"),
        ("7", "x-shard", "\"x-shard\" = '7'"),
        ("", "tenant", ""),
        ("3", "shard / 10", ""),
        (bounded_key("x" * 256), "tenant", ""),
    ],
)
def test_the_filter_of_a_partition(key: str, by: str, where: str) -> None:
    assert partition_filter(key, by) == where
