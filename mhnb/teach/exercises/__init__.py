"""The exercises and predictions of the course, one module for each lesson."""
