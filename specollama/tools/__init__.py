"""Programs built on a pair: bench, doctor, export, native server, review, trace page."""
