"""What can be done to queues, messages, results and staged jobs: each operation changes memory and leaves effects."""
