"""The queue client, one mixin a group of calls; the async half is the source of the sync half."""
