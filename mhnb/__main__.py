"""Entry point of `mhnb COMMAND` and `python -m mhnb COMMAND`."""

import sys


def main() -> int:
    """Run one command; report Ctrl-C also during its import."""
    try:
        from mhnb.cli.main import main as run_command
    except KeyboardInterrupt:
        print("mhnb: interrupted before the command began", file=sys.stderr)
        return 130
    return run_command()


if __name__ == "__main__":
    sys.exit(main())
