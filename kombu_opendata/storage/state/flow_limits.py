"""Limits on the deliveries of a queue or a partition: slots, tokens, and a time before which nothing is delivered.

*Slots* limit the messages in flight and the tasks that run after an early acknowledgement. They are not stored:
leases and running tasks are, and a slot is free when its lease or task ends, however that happens.

*Tokens* limit the rate. A token bucket needs a number of tokens and a time; the generic cell rate algorithm needs a
single number, the *theoretical arrival time*: the time at which the bucket will be full. A delivery moves it one
interval ahead, and is allowed while it is at most ``burst`` intervals ahead of now. The effect of a claim computes it
from the time of the claim, so the journal needs no byte for it, and a replay has the same result; checkpoints store it.
So a crash, a restart and a take-over neither lose nor add tokens, and a message that returns has used its token.

Deliveries are late: the timer of the event loop and the clock have a millisecond. Without a *slack*, a bucket for one
token would lose this time at each delivery, and the rate would not be reached. So the bucket may be fuller by less than
a token, which adds no delivery to a window of the rate's period.

The broker's clock is monotonic, and is not behind the times in the store, so a clock that is set back stops no queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...protocol.rate import Rate

#: the room of a queue without limits
UNLIMITED = 1 << 62
_MS = 1_000_000
_MAX_SLACK_NS = 50 * _MS
#: the beginning of the arguments with the limits of partitions
PARTITION = "x-partition-"


class FlowRules(NamedTuple):
    """Limits in a queue's arguments; 0 means no limit.

    Attributes:
        interval_ns: the time in which a token is added, rounded up, so that no window exceeds the rate.
        burst: the tokens of a full bucket.
    """

    concurrency: int = 0
    interval_ns: int = 0
    burst: int = 0

    @classmethod
    def of(cls, arguments: Mapping[str, Any], prefix: str = "x-") -> FlowRules:
        """Return the limits of a queue, or of its partitions by their prefix :data:`PARTITION`.

        An invalid limit, which a version without checks accepted, counts as missing.
        """
        concurrency, text = arguments.get(f"{prefix}concurrency"), arguments.get(f"{prefix}rate")
        concurrency = concurrency if type(concurrency) is int and concurrency > 0 else 0
        if text is None or not Rate.is_valid(text):
            return cls(concurrency)
        number, period_ms, burst = Rate.parse(text)
        return cls(concurrency, -(-period_ms * _MS // number), burst)


NO_LIMITS = FlowRules()


def limited(flow: FlowLimits | None, rules: FlowRules, at_ms: int) -> FlowLimits | None:
    """Return limits with new rules from a time on; None means that there never were any rules.

    A bucket that is further from full than its new burst is empty. Nothing was delivered since the time.
    """
    if flow is None:
        return None if rules == NO_LIMITS else FlowLimits(rules)
    flow.rules = rules
    flow.full_at_ns = min(flow.full_at_ns, at_ms * _MS + rules.burst * rules.interval_ns)
    return flow


class FlowLimits:
    """Limits of one queue or partition, and the state of its tokens.

    Attributes:
        rules: the limits in effect.
        full_at_ns: the time at which all tokens are available; a time in the past means now.
        delayed_until_ms: nothing is delivered before this time.
    """

    __slots__ = ("delayed_until_ms", "full_at_ns", "rules")

    def __init__(self, rules: FlowRules = NO_LIMITS) -> None:
        self.rules = rules
        self.full_at_ns = 0
        self.delayed_until_ms = 0

    @property
    def state(self) -> tuple[int, int]:
        """The fields that are stored."""
        return self.full_at_ns, self.delayed_until_ms

    def take(self, count: int, at_ms: int) -> bool:
        """Use tokens for deliveries at a time; return False if there is no rate."""
        interval_ns = self.rules.interval_ns
        if not interval_ns:
            return False
        self.full_at_ns = self._full_at(at_ms * _MS) + count * interval_ns
        return True

    def room(self, used: int, now_ms: int) -> int:
        """Return the number of messages that may be delivered now, where ``used`` slots are taken."""
        if self.delayed_until_ms > now_ms:
            return 0
        concurrency, interval_ns, burst = self.rules
        room = max(concurrency - used, 0) if concurrency else UNLIMITED
        if interval_ns:
            now_ns = now_ms * _MS
            room = min(room, (now_ns - self._full_at(now_ns)) // interval_ns + burst)
        return room

    def opens_at_ms(self, now_ms: int) -> int:
        """Return the time from which time alone forbids no delivery; a time in the past means now."""
        _, interval_ns, burst = self.rules
        opens_at = self.delayed_until_ms
        if interval_ns:
            token_at_ns = self._full_at(now_ms * _MS) - (burst - 1) * interval_ns
            opens_at = max(opens_at, -(-token_at_ns // _MS))
        return opens_at

    def reason(self, used: int, now_ms: int) -> tuple[str, int]:
        """Return what forbids a delivery now: ``delay``, ``rate`` or ``concurrency``, and its end; empty if nothing.

        The end of a limit of concurrency is 0.
        """
        if self.room(used, now_ms):
            return "", 0
        opens_at_ms = self.opens_at_ms(now_ms)
        if opens_at_ms <= now_ms:
            return "concurrency", 0
        return "delay" if self.delayed_until_ms > now_ms else "rate", opens_at_ms

    def is_idle(self, now_ms: int) -> bool:
        """Return True if there is nothing to remember: all tokens are available, and there is no delay."""
        return self.full_at_ns <= now_ms * _MS - _MAX_SLACK_NS and self.delayed_until_ms <= now_ms

    def _full_at(self, now_ns: int) -> int:
        """Return the time at which the bucket is full, which is in the past only by the slack."""
        return max(self.full_at_ns, now_ns - min(self.rules.interval_ns // 2, _MAX_SLACK_NS))
