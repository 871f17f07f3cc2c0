"""`python -m blocklab`."""

from blocklab.cli import main

if __name__ == "__main__":
    main()
