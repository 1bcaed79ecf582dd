"""The lanes that run the same statements, and values of several groups of lanes put together."""
