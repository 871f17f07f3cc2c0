"""A learner's own module beside ours: the same numbers, or the mistake that explains the others.

Our parts are written here once more as plain functions whose every decision can be taken wrongly.
The wrong decision that gives the learner's own numbers is the one the learner took.
"""
