"""Active role: which of two brokers of a store is active, and the take-over by the other."""
