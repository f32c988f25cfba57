"""Quadratic spanning trees under uncertain costs: ERM, exact and smoothed decisions compared.

    python examples/quadratic_tree.py [--quick] [--output DIRECTORY]

The same as `wdro-model demo`; what it does is in `wdro_model/demo.py`.
"""

import sys

from wdro_model.command_line import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
