"""The public entry points (`ab.batch`, `ab.map`, `ab.grad`) and the choice of a mode for each call."""
