"""The questions that ship with blocklab, by name."""

from pathlib import Path

import blocklab
from blocklab.errors import BlocklabError, nearest
from blocklab.study.study import Study

DEFAULT = "modern_block"


def shipped_studies() -> dict[str, Path]:
    """Name and file of every shipped question."""
    package = Path(blocklab.__file__).parent
    # Installed, the questions lie in the package; in a checkout, beside `src`.
    folders = (package / "studies", package.parents[1] / "studies")
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def find_study(name: str) -> Study:
    """A study by the name of a shipped question, or by its file.

    Raises BlocklabError naming the nearest when there is neither.
    """
    shipped = shipped_studies()
    path = shipped.get(name, Path(name))
    if not path.is_file():
        raise BlocklabError(
            f"no study '{name}': no file, and no question that ships; {nearest(name, shipped)}"
        )
    return Study.from_yaml(path)
