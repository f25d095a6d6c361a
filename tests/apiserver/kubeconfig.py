"""Kubeconfig files for tests."""

from pathlib import Path

import yaml


def kubeconfig_text(url: str, authority: Path | None = None, token: str = "", token_file: Path | None = None) -> str:
    """A kubeconfig with one cluster, one user and one context, as YAML."""
    cluster = {"server": url, **({"certificate-authority": str(authority)} if authority else {})}
    user = {**({"token": token} if token else {}), **({"tokenFile": str(token_file)} if token_file else {})}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
    )
