"""Agreement before each launch, records of launches and arrays, and pending work."""
