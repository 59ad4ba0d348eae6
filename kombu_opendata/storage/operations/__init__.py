"""The operations on queues, messages, results and staged jobs: each changes memory and records effects."""
