"""The curves of the page, as data: the sizes that grow, and what is measured at each point."""

from __future__ import annotations

from dataclasses import dataclass

#: of each of many consumers, which share so many processes
SMALL_PREFETCH, PROCESSES = 10, 2
#: of a queue, whose bindings have a limit
BINDINGS_EACH = 100


@dataclass(frozen=True)
class Quantity:
    """What is measured at each point."""

    key: str
    title: str
    unit: str


QUANTITIES = (
    Quantity("publish", "publish, 8 processes", "msg/s"),
    Quantity("consume", "consume + ack", "msg/s"),
    Quantity("latency", "one publish, p50", "ms"),
    Quantity("publish_cpu", "broker CPU per publish", "µs"),
    Quantity("consume_cpu", "broker CPU per consume + ack", "µs"),
    Quantity("memory", "broker memory (RSS)", "MB"),
    Quantity("restart", "restart to first delivery", "s"),
    Quantity("disk", "disk at rest", "MB"),
)


@dataclass(frozen=True)
class Curve:
    """One size that grows: ``curve_KEY`` of `Sizes`."""

    key: str
    title: str
    axis: str
    text: str
    """What is measured, for the page."""
    restarts: bool = True
    stores: bool = False
    """Whether the disk says something about it."""


CURVES = (
    Curve(
        "backlog",
        "Waiting messages",
        "messages waiting",
        "They wait in the queue that is published to and consumed from its head.",
        stores=True,
    ),
    Curve(
        "history",
        "Settled messages",
        "messages settled",
        "They were published to the same queue and consumed; the store keeps their history.",
        stores=True,
    ),
    Curve("queues", "Queues", "queues", "Messages are published to them in turn. One more queue is consumed."),
    Curve(
        "bindings",
        "Bindings",
        "bindings",
        "They bind queues to one topic exchange, each with a pattern `part.NUMBER.*`. A queue has up to "
        f"{BINDINGS_EACH} of them. Messages are published to keys that match these in turn, with other keys in each "
        "round. One more queue is consumed.",
    ),
    Curve(
        "consumers",
        "Consumers",
        "consumers",
        f"Consumers of one queue, each with a channel of its own and prefetch {SMALL_PREFETCH}, in up to {PROCESSES} "
        "processes. They also take what is published while publishing is measured, so the broker's CPU per publish "
        "has these deliveries in it.",
        restarts=False,
    ),
    Curve(
        "connections",
        "Connections",
        "idle connections",
        "They are open beside those of the measured clients.",
        restarts=False,
    ),
)
