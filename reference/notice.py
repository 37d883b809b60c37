"""One line to the user that stops nothing: on stderr, past a progress bar."""

import sys

from tqdm import tqdm


def notice(text: str) -> None:
    """Print `text`, one sentence."""
    tqdm.write(f"fourbit: {text}", file=sys.stderr)
