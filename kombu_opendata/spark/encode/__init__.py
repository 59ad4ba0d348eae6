"""Encoding of rows as messages: plans, templates of tasks, and the columns of messages.

Used on driver and executors.
"""
