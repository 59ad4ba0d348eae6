"""Two brokers of one store: which of them is active, and how the other one takes over."""
