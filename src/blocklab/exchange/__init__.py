"""Other people's checkpoints, in and out: the only room that knows other people's names."""
