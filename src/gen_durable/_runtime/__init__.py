"""What a worker does, as services on one event loop: pick, execute, commit, keep leases, reap."""
