"""From rows to messages: plans, templates of tasks, and their columns. Runs on the driver and on executors."""
