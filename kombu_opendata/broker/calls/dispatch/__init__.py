"""Dispatch of a message to its handler: the handler's context, the user's permissions, the broker's capacity."""
