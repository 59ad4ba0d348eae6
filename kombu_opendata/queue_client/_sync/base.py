# Made by tools/unasync.py from ../_async/base.py: change that one, then run the script.
"""What every group of calls stands on."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from ...client.clock import SYSTEM, Clock
from ...client.connection_options import Options, check_broker_options
from ..blocking_calls import Calls


class Base:
    """A client's connections. Mixins use ``self._calls.call(message)``."""

    def __init__(self, url: str, *, name: str = "", clock: Clock = SYSTEM, **options: Any) -> None:
        """
        Args:
            url: of the broker, as in Celery's ``broker_url``; ``opendata:///folder`` starts one where none runs.
            name: how this client is called in the broker: the reader of what it reads, the worker in its list; empty is
                ``host:pid``.
            clock: where the time comes from.
            options: settings of its connections, the fields of
                :class:`kombu_opendata.client.connection_options.Options`; times in seconds.

        Raises:
            InvalidURL: the text says what to write.
            RequestError: ``broker_options`` are wrong.
        """
        options["broker_options"] = check_broker_options(options.get("broker_options"))
        self._calls = Calls(url, Options(name=name, **options), clock=clock)

    def _now_ms(self) -> int:
        return int(1000 * self._calls.clock.wall())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the sessions. What was read stays held until its time is over; what iterators hold goes back."""
        self._calls.close()
