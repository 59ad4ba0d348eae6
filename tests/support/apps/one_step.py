"""``opendata-queue`` whose bulks of failures answer one step of 100 failures and no further: one_step.py ARGUMENTS….

The second step is done, but who asked for it waits until the broker is killed. So a test can interrupt a bulk for sure.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

from kombu_opendata.broker.calls import failure_bulk as bulks

_STEPS = itertools.count(1)


def main(arguments: list[str]) -> None:
    retry = bulks.Bulks.retry

    async def retry_one_step(self: bulks.Bulks, bulk: bulks.Bulk) -> None:
        await retry(self, bulk)
        if next(_STEPS) > 1:
            await asyncio.Event().wait()

    bulks.STEP_SECONDS = 0
    bulks.Bulks.retry = retry_one_step  # type: ignore[method-assign]
    from kombu_opendata.cli.root import main as cli

    cli(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
