"""The numbers that several reports show: of queues, of the last minutes, and of failures."""
