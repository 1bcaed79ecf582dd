"""The command `autobatch`: `commands` has the sub-commands; what each does is in the other modules."""
