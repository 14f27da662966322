"""``python -m diffattn``."""

from diffattn.lab.cli.app import main

if __name__ == "__main__":
    main()
