"""Replies that a person approves before anything goes out: a run's folder, its audit log, decisions and the release."""
