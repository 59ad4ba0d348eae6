"""Publishes in flight of a pipeline."""

from __future__ import annotations

from typing import NamedTuple

from ...errors import FailedPublish, OpenDataError, PublishFailed

#: number of ids that an error or a log line lists
_LISTED_IDS = 20


class PublishInFlight(NamedTuple):
    """Publish in flight; ``failures`` receives an entry if it fails."""

    size: int
    exchange: str
    routing_key: str
    task_id: str
    message_id: str
    failures: list[FailedPublish]


class PublishesInFlight:
    """Publishes in flight on one session, by request id.

    Attributes:
        by_rid: the publishes, oldest first.
        bytes: the size of their frames.
    """

    __slots__ = ("by_rid", "bytes")

    def __init__(self) -> None:
        self.by_rid: dict[int, PublishInFlight] = {}
        self.bytes = 0

    def add(self, rid: int, publish: PublishInFlight) -> None:
        self.by_rid[rid] = publish
        self.bytes += publish.size

    def remove(self, rid: int) -> PublishInFlight | None:
        """Forget a publish, which was confirmed or could not be sent."""
        publish = self.by_rid.pop(rid, None)
        if publish is not None:
            self.bytes -= publish.size
        return publish

    def fail(self, rid: int, error: OpenDataError) -> None:
        """Forget a publish and add it to its list of failures."""
        publish = self.remove(rid)
        if publish is not None:
            publish.failures.append(
                FailedPublish(publish.exchange, publish.routing_key, publish.task_id, publish.message_id, error)
            )


def publish_failed(failed: list[FailedPublish], more: str = "") -> PublishFailed:
    """Return the error that reports these publishes."""
    ids = ", ".join(entry.task_id or entry.message_id or entry.routing_key for entry in failed[:_LISTED_IDS])
    rest = f" and {len(failed) - _LISTED_IDS} more" if len(failed) > _LISTED_IDS else ""
    return PublishFailed(
        f"{len(failed)} publishes were not confirmed: {ids}{rest}; the first: {failed[0].error}{more}", failed=failed
    )
