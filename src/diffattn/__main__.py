"""The ``diffattn`` command, and ``python -m diffattn``."""

import sys

from diffattn.errors import DiffAttnError


def main() -> None:
    """Run the command line. Without the lab's packages, say how to install them and exit with 2."""
    try:
        from diffattn.lab.cli.app import main as run
    except DiffAttnError as error:  # of diffattn.lab, where packages are missing
        print(error, file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
