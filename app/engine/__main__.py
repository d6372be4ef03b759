"""`python -m pilotlight.engine FD`: process 2, started by the front with its end of the line as descriptor FD."""

import sys

from .worker import main

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
