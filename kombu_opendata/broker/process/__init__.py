"""The broker as a process: options, lock, log, signals, the instances it serves."""
