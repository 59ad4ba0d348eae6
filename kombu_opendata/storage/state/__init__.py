"""The durable state of an instance in memory."""
