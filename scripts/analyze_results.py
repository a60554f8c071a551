"""Write the report of a folder of results: one page of HTML, and Markdown.

The flags are those of document 004; ``genesis-fp16 lab`` does the work.
"""

import argparse
import sys
from collections.abc import Sequence

from genesis_fp16.cli import main


def command(arguments: Sequence[str] | None = None) -> list[str]:
    """*arguments* as a command of ``genesis-fp16 lab``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results_dir", default="results")
    parser.add_argument("--output_dir", help="by default the folder of the results")
    given = parser.parse_args(arguments)
    output = given.output_dir or given.results_dir
    return ["report", given.results_dir, "--output", output]


if __name__ == "__main__":
    sys.argv = ["genesis-fp16", "lab", *command()]
    main()
