# Made by tools/unasync.py from ../_async/base.py: change that one, then run the script.
"""What every group of calls stands on."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ...client.options import Options
from ..callers import Calls


class Base:
    """A client's connection. Mixins use ``self._calls``."""

    def __init__(self, url: str, *, name: str = "", options: Options | None = None) -> None:
        """
        Args:
            url: of the broker, as in Celery's ``broker_url``; ``opendata:///folder`` starts one where none runs.
            name: how this client is called in the broker: the reader of what it reads, the worker in its list; empty is
                ``host:pid``.
            options: settings of its connections.
        """
        settings = options or Options()
        self._calls = Calls(url, Options(**{**vars(settings), "name": name or settings.name}))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session. What is held by time stays held until its time is over."""
        self._calls.close()
