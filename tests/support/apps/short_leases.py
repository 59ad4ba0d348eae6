"""``opendata-queue`` with shorter leases: short_leases.py SECONDS GRACE_SECONDS ARGUMENTS….

The default is too long for a test. The clients' grace may have to be longer than its default, though: after a restart
it is all that protects what a lease so short does not, and a machine that stands still for some seconds must not use it
up.
"""

from __future__ import annotations

import sys

from long_grace import set_grace  # type: ignore[import-not-found]  # it stands beside this program

from kombu_opendata.protocol import queue_arguments


def main(seconds: int, grace_seconds: float, arguments: list[str]) -> None:
    queue_arguments.DEFAULT_LEASE_SECONDS = seconds  # of what is imported below
    defaults = {**queue_arguments.QueueArguments._field_defaults, "lease_seconds": seconds}
    queue_arguments.QueueArguments.__new__.__defaults__ = tuple(defaults.values())
    set_grace(grace_seconds)
    from kombu_opendata.cli.root import main as cli

    cli(arguments)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
