"""Which queues a message goes to: exchanges, bindings, filters."""
