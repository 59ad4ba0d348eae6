"""From a message to its handler: which one, with which context, whether the user may and the broker can."""
