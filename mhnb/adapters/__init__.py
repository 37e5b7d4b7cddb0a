"""Conversions between JAX or NumPy objects and plain values."""
