"""The command `autobatch`: `commands.py` has the sub-commands, and the other modules do their work."""
