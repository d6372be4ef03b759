"""`python -m pilotlight` (installed) and `python -m app` (in the tree) are the `pilotlight` command."""

from .cli import main

if __name__ == "__main__":
    main()
