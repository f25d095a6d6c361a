"""Every test of this folder may ask for a network namespace of its own."""

from pathlib import Path

import pytest
import yaml

from unit.kernel.private_net import namespace, pytest_configure
from unit.report.restored_logs import restored_logs

from .support import MANIFESTS

__all__ = ["namespace", "pytest_configure", "restored_logs"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of manifests."""
    found = tmp_path / "manifests"
    found.mkdir()
    (found / "shop.yaml").write_text(yaml.safe_dump_all(MANIFESTS))
    return found
