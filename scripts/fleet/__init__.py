"""What `scripts/simulate_fleet` is made of: arrivals, service times, the fleet itself, and its figures."""
