"""Agreement between the ranks before each launch, records of launches and arrays, and waits for pending work."""
