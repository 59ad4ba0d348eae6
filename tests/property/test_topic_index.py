"""A topic exchange against trying each of its patterns in turn."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from kombu_opendata.selectors.topic_match import topic_matches
from kombu_opendata.storage.routing.topology import Topology

WORDS = st.sampled_from(["a", "b", "", "*", "#", "a#"])
LONG = "a.#.b.*" + ".#.a" * 4  # with more words, a pattern is not in the trie
TEXTS = st.lists(WORDS, max_size=5).map(".".join) | WORDS.map(f"{LONG}.{{}}".format) | st.just(LONG)
CHANGES = st.lists(st.tuples(st.booleans(), st.sampled_from("pqr"), TEXTS), max_size=30)


def keys() -> list[str]:
    """All keys of up to three words."""
    return sorted({".".join(p) for size in range(4) for p in product(["a", "b", "", "*", "#"], repeat=size)})


@given(changes=CHANGES, gone=st.sampled_from([None, "p"]), long_keys=st.lists(TEXTS, max_size=5))
def test_as_each_pattern_in_turn(changes: list[tuple[bool, str, str]], gone: str | None, long_keys: list[str]) -> None:
    topology = Topology()
    model: dict[str, dict[str, None]] = {}  # pattern → queues, both in order
    for is_bind, queue, pattern in changes:
        if is_bind:
            topology.bind(queue, "amq.topic", pattern, {})
            model.setdefault(pattern, {})[queue] = None
        else:
            topology.unbind(queue, "amq.topic", pattern, {})
            model.get(pattern, {}).pop(queue, None)
        model = {pattern: bound for pattern, bound in model.items() if bound}
    if gone is not None:
        topology.remove_queue(gone)
        model = {pattern: left for pattern, bound in model.items() if (left := {q: None for q in bound if q != gone})}
    exchange = topology.get("amq.topic")
    for key in [*keys(), "a.b.a" + ".a" * 4, "a.b.a.b" + ".a" * 5, *long_keys, *model]:
        expected = [queue for pattern, bound in model.items() if topic_matches(pattern, key) for queue in bound]
        assert list(exchange.queues(key)) == expected, key
    assert topology.binding_count == sum(map(len, model.values()))
