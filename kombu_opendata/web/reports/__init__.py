"""What the views show and the API returns: calls of the broker, put together; no HTML and no HTTP."""
