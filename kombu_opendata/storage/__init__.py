"""The storage engine: state in memory, journal, checkpoints, recovery and retention, on SlateDB."""
