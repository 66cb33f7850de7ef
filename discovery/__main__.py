"""``python -m discovery``: the same as the command ``discovery``."""

from discovery.cli import main

if __name__ == "__main__":
    main()
