"""The command line: `python -m autobatch`."""
