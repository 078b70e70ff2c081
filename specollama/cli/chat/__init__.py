"""The interactive chat: input, commands, saved conversations, and the view of replies."""
