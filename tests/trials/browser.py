"""A real browser without a window, where there is one."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
"""What the program may be called."""


@dataclass(frozen=True)
class Opened:
    """What a browser made of a page."""

    document: str
    """Its elements after all scripts ran."""
    console: tuple[str, ...]


def open_page(path: Path, folder: Path) -> Opened:
    """Open a page and let its scripts run to their end; skip where no browser is.

    Args:
        path: The page.
        folder: For the browser's profile.
    """
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"needs a browser, one of {', '.join(NAMES)}")
    done = subprocess.run(
        [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}",
         "--enable-logging=stderr", "--log-level=0", "--window-size=1200,2000",
         "--virtual-time-budget=20000", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, errors="replace", timeout=240, check=True,
    )  # fmt: skip
    console = tuple(line for line in done.stderr.splitlines() if ":CONSOLE:" in line)
    return Opened(document=done.stdout, console=console)
