"""Reports of what a batched run did: text, pages, timelines and graphs."""
