"""Queue client, with a mixin for each group of calls. The sync half is generated from the async half."""
