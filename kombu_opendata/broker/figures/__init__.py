"""What a broker remembers of its queues' figures: ten minutes, in samples of five seconds."""
