"""The broker's side of results."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kombu_opendata.broker.delivery.result_watches import ResultWatches
from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.errors import RequestError


def test_what_a_client_may_wait_for_is_bounded() -> None:
    service, session, other = (
        ResultWatches(cast(Any, None), limit=3),
        Session(b"1" * 16, "one"),
        Session(b"2" * 16, "two"),
    )
    for name in (b"a", b"b"):
        service.watch(session, name)
    service.check_room(session, 1)
    service.check_room(other, 3)
    with pytest.raises(RequestError, match="wait for 3 results at a time, not 4: forget some first"):
        service.check_room(session, 2)
    service.unwatch(session, b"a")
    service.check_room(session, 2)
