"""Encoding of rows as messages, on driver and executors: plans, templates of tasks, and columns of messages."""
