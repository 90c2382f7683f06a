"""``python -m evener``: the same as the command ``evener``."""

from evener.cli import main

if __name__ == "__main__":
    main()
