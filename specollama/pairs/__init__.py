"""A draft/target pair: choose a route, load the models, run the reply, answer a request."""
