"""What the broker knows of its clients and its queues: plain objects that serve one instance."""
