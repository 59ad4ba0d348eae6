"""The records of a store, as they were when it was opened."""
