"""Broker's model of clients and queues: plain objects of one instance."""
