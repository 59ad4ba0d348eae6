"""Each target reads its seeds and its corpus: what fuzzing once found interesting, without the fuzzer."""

from __future__ import annotations

import pytest

from .target import CORPUS, corpus, load_inputs
from .targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_reads_its_corpus(name: str) -> None:
    target = TARGETS[name]()
    target.open()
    try:
        inputs = [*target.seeds(), *load_inputs(corpus(name))]
        assert len(inputs) > 3
        for data in inputs:
            target.run(data)
    finally:
        target.close()


def test_each_target_has_a_corpus_and_all_are_small() -> None:
    files = list(CORPUS.glob("*"))
    assert sorted(file.stem for file in files) == sorted(TARGETS), "make fuzz TARGET=… ARGS=--keep"
    assert sum(file.stat().st_size for file in files) < 300_000
