"""Inspect shardings before anything runs: layouts of arrays, and what the compiler would make of a program."""
