"""Pure rules of the guard: launch agreement, launch comparison, provenance, host data."""
