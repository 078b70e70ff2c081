"""The ways to run a reply, by their users' names: local, lanes, greedy, scoring, native."""
