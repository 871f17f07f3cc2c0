"""The command line: one thin file a command. Nothing here imports torch until a command runs."""

from blocklab.cli.app import app, main

__all__ = ["app", "main"]
