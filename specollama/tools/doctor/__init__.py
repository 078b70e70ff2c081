"""What the servers, models and pairs of a machine can do, and what to change about them."""
