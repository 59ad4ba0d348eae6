"""The index of the history: which messages and attempts have a value, such as a queue or a header."""
