"""``opendata-queue`` with shorter leases: short_leases.py SECONDS ARGUMENTS…. The default is too long for a test."""

import sys

from kombu_opendata.storage import state


def main(seconds: int, arguments: list[str]) -> None:
    state.DEFAULT_LEASE_SECONDS = seconds
    defaults = {**state.QueueOptions._field_defaults, "lease_seconds": seconds}
    state.QueueOptions.__new__.__defaults__ = tuple(defaults.values())
    from kombu_opendata.cli import main as cli  # imports what reads the default

    cli(arguments)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
