"""Which of the recorded calls are launched together, and in which order."""
