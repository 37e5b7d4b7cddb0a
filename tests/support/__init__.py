"""Shared by the tests: fakes, harnesses and builders."""
