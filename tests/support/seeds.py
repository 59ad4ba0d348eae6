"""Seeds of the fault tests: printed, and given again with ``FAULT_SEED=… pytest …``."""

from __future__ import annotations

import os
import random

VARIABLE = "FAULT_SEED"


def seeded_random() -> random.Random:
    """A generator whose seed the test's output tells."""
    seed = int(os.environ.get(VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"{VARIABLE}={seed}")
    return random.Random(seed)
