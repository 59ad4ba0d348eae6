"""The recent metrics of a broker's queues: ten minutes, in samples of five seconds."""
