"""What an instance's calls and duties share: queues, sessions, leases, the turn that delivers, commits and sends."""
