"""Rows as messages: plans, templates of tasks, and the columns of messages. Runs on the driver and on executors."""
