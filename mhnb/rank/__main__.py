"""`python -m mhnb.rank`: one rank in a new process."""

from mhnb.rank.main import main

main()
