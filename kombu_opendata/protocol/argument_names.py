"""Names of the arguments of queues and exchanges that several layers read."""

from __future__ import annotations

DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"
DEAD_LETTER_ROUTING_KEY = "x-dead-letter-routing-key"
FILTER = "x-filter"
FILTER_MODE = "x-filter-mode"
#: the queue receives messages that a binding or the filter matches, or only those that both match
ANY, ALL = "any", "all"
ALTERNATE_EXCHANGE = "alternate-exchange"
