"""Tables whose ids are keys: the embedding variable, what it is made of, and what turns features into keys."""
