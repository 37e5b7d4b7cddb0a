"""`python -m mhnb.rank`: one rank, started afresh."""

from mhnb.rank.main import main

main()
