"""One training: its steps, its numerics, what it observes; a run that can be stopped anywhere."""
