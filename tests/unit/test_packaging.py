"""What is built for others holds all that it needs: templates are reached through a link in the source tree."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TEMPLATES = sorted(path.name for path in Path(__file__).parents[2].joinpath("templates").iterdir())


def build(source: Path, target: str, folder: Path) -> Path:
    """Build an sdist or wheel of a source tree; the file."""
    words = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist of this source tree."""
    built = build(Path(__file__).parents[2], "sdist", tmp_path_factory.mktemp("sdist"))
    unpacked = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xzf", built, "-C", unpacked], timeout=60, check=True)
    (found,) = unpacked.iterdir()
    return found


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_sdist_is_laid_out_like_the_source_tree(sdist: Path) -> None:
    assert TEMPLATES
    assert sorted(path.name for path in (sdist / "templates").iterdir()) == TEMPLATES
    for name in (".ci/run", "Makefile", "README.md", "LICENSE", "docs/differences.md", "tests/unit/test_packaging.py"):
        assert (sdist / name).is_file(), name


def test_wheel_holds_the_templates_and_says_that_it_is_typed(tmp_path: Path) -> None:
    held = names(build(Path(__file__).parents[2], "wheel", tmp_path))
    assert {f"nodeproxy/templates/{name}" for name in TEMPLATES} < held
    assert "nodeproxy/py.typed" in held
    assert not any(name.startswith("tests/") for name in held)


def test_wheel_that_is_built_from_the_sdist_is_the_same(sdist: Path, tmp_path: Path) -> None:
    """That is how it is built where no wheel is published."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    here = names(build(Path(__file__).parents[2], "wheel", tmp_path / "a"))
    assert names(build(sdist, "wheel", tmp_path / "b")) == here
