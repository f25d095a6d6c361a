"""nodeproxy: a Kubernetes service proxy that programs nftables and says what it does."""

__version__ = "0.1.0"
