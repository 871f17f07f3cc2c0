"""One training: its steps, its numerics, what it observes, and a run that can be stopped anywhere."""
