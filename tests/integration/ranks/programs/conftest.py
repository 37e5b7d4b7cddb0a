"""Keep pytest from importing the programs here, because they run collectives; test_programs.py runs them."""

collect_ignore_glob = ["*.py"]
