"""A conversation in the terminal: what is typed, what is said, what is kept, and how it is shown."""
