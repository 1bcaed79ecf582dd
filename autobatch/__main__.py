"""`python -m autobatch`: what is installed, the options, and where to go from there."""

import sys

from autobatch.cli.commands import main

sys.exit(main(sys.argv[1:]))
