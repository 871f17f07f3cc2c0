"""Published figures beside ours: what a text says a model does, found again by running it."""
