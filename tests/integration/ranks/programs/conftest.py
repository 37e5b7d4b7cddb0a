"""The programs here are run by test_programs.py, never imported: they begin collectives."""

collect_ignore_glob = ["*.py"]
