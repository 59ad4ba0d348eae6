"""The calls of the queue client: messages sent, read and settled by their ids, looked at; workers."""
