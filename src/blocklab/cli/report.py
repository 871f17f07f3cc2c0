"""`blocklab report`: write a study's report again."""

from pathlib import Path
from typing import Annotated

import typer

from blocklab.cli.options import path_to_read


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", parser=path_to_read, help="What blocklab ablate wrote."),
    ],
) -> None:
    """Write the report again from what a study's folder holds; trains nothing."""
    from blocklab.cli.summary import print_summary
    from blocklab.report.html import write_report
    from blocklab.study.stored import stored_result

    result = stored_result(folder)
    print_summary(result, write_report(result, folder))
