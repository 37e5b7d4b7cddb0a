"""Tests of everything a person sees."""
