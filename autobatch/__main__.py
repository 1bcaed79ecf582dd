"""`python -m autobatch`: what is installed, the options, and where to go from there."""

import sys

from autobatch import cli

sys.exit(cli(sys.argv[1:]))
