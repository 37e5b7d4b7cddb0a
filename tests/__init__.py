"""The suite. A package, so that helpers are imported by name and `python -m tests.bench` works."""
