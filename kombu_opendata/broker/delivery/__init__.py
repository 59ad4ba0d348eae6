"""The parts shared by an instance's calls and duties: queues, leases, sessions, delivery, commits, answers."""
