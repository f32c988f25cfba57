"""`python -m wdro_model`."""

import sys

from wdro_model.command_line import main

if __name__ == "__main__":
    sys.exit(main())
