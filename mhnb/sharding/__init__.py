"""Which device holds which box of an array, what that costs, and what is legal: decided from plain values, without JAX."""
