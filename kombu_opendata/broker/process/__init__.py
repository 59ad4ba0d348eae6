"""Broker as a process: options, lock, log, signals, and the instances that it serves."""
