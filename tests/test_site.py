"""The documentation's site: it builds without a warning, and a browser shows it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def build(builder: str, site: Path, *options: str) -> None:
    """The site by one of Sphinx's builders, without a warning about links, references, tables of contents and docstrings."""
    pytest.importorskip("sphinx")
    words = ("-q", "-W", "--keep-going", "-b", builder, "-d", f"{site}.trees", "-c", "docs", *options, ".", str(site))
    built = subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (built.returncode, built.stderr) == (0, "")


@pytest.mark.slow
def test_the_pages_have_no_warning(tmp_path: Path) -> None:
    """All are read, and their references resolved; none is written."""
    build("dummy", tmp_path / "site", "-D", "smartquotes=0")


@pytest.mark.long
def test_the_site_is_built_and_shown(tmp_path: Path) -> None:
    """A browser, where there is one, shows the first page."""
    site = tmp_path / "site"
    build("html", site)

    assert (site / "docs" / "index.html").is_file()
    assert "docs/index.html" in (site / "index.html").read_text(encoding="utf-8")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("the site is built; there is no Chromium to show it")
    picture = tmp_path / "page.png"
    page = (site / "docs" / "index.html").as_uri()
    shot = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--screenshot={picture}", "--window-size=1280,900", page]
    subprocess.run(shot, cwd=tmp_path, capture_output=True, check=True, timeout=120)
    assert picture.stat().st_size > 10_000
