"""The configuration file, endpoints, and a pair's settings."""
