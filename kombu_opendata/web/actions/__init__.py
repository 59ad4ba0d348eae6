"""What can be done: each action with its parameters, what it would concern, and the deed; no HTML and no HTTP."""
