"""``python -m nodeproxy``."""

from nodeproxy.cli.main import entry_point

entry_point()
