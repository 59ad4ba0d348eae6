"""The link of a message to its trace; the rows of partitions and their filters."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kombu_opendata.protocol.messages import PartitionInfo
from kombu_opendata.storage.state.partitions import bounded_key
from kombu_opendata.web.rendering import Renderer, partition_filter, trace_link
from kombu_opendata.web.reports.paging import Paged
from kombu_opendata.web.views.queue import PartitionReport

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


class Links:
    """The links of a page whose user may change nothing."""

    def __call__(self, path: str = "", **query: Any) -> str:
        return f"/{path}?{query}"

    def offers(self, _name: str) -> bool:
        return False


def test_each_partition_has_its_own_place_while_messages_are_moved() -> None:
    rows = tuple(
        PartitionInfo(key, 1, 0, 0, 1, 0.25, limit)
        for key, limit in (("", "moving"), ("", ""), ("acme", "moving"), ("acme", ""))
    )
    report = PartitionReport("q", "tenant", "", None, "backlog", "", Paged(rows, 4, 1, 1))
    text = Renderer().block("partitions.html", "content", {"report": report, "link": Links(), "same": Links()})
    ids = re.findall(r'<tr id="([^"]*)"', text)
    assert ids == ["moving-1", "partition-", "moving-3", "partition-acme"]
    assert text.count("tenant = ") == 2
