"""Planted bugs apply to the code. Not among the fast tests: in a copy with a planted bug, its patch never applies."""

from __future__ import annotations

import pytest

from .__main__ import ROOT, Mutant, apply, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_planted_bug_applies(mutant: Mutant) -> None:
    assert apply(mutant, ROOT, "--check") == "", "make the patch again, for the changed code"
