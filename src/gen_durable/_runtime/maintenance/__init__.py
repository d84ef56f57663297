"""Background services that keep the tables in order: expired leases, deadlines, retention, schedules, vacuum."""
