"""Explanations in the user's own terms: known errors and their fixes, what a rank is doing, which ranks wait for which."""
