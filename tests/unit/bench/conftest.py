"""Every test of this folder may ask for a network namespace of its own."""

from unit.kernel.private_net import namespace, pytest_configure

__all__ = ["namespace", "pytest_configure"]
