"""Tables whose ids are keys: the embedding variable and its parts, and functions that turn features into keys."""
