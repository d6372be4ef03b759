"""What scripts/measure_startup is made of."""
