"""One question: its plan, its runs, and what may be claimed of them."""
