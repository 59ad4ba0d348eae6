"""The index of the history: the messages and attempts that have a value, such as a queue or a header."""
