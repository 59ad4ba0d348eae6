"""What the broker does on each message of a client."""
