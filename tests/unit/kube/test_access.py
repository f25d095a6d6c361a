"""Where the API server is and as whom it is asked: flags, a pod's environment and files, kubeconfigs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import yaml

from nodeproxy.kube.access import Access, find_access
from nodeproxy.kube.source import SourceError

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "192.0.2.7", "KUBERNETES_SERVICE_PORT": "6443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """A service account's folder as a kubelet makes it: files behind two symlinks, of which one is swapped."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    publish(folder, "first")
    for name in ("token", "ca.crt"):
        (folder / name).symlink_to(f"..data/{name}")
    return folder


def publish(folder: Path, token: str) -> None:
    """Replace all files at once."""
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    (version / "token").write_text(token)
    (version / "ca.crt").write_text("a certificate")
    (folder / "..new").symlink_to(version.name)
    (folder / "..new").replace(folder / "..data")


def kubeconfig(tmp_path: Path, user: dict[str, Any], server: str = "https://192.0.2.8:6443") -> Path:
    path = tmp_path / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    return path


def sent(access: Access) -> str | None:
    """The Authorization header of the next request."""
    request = access.client().param_serialize("GET", "/", header_params={}, auth_settings=["BearerToken"])
    return request[2].get("authorization")


def test_pod_asks_at_the_address_of_its_environment_with_its_token(account: Path) -> None:
    access = find_access(environ=IN_CLUSTER, service_account=account)
    assert access.server == "https://192.0.2.7:6443"
    assert access.addresses() == {"192.0.2.7"}
    assert sent(access) == "bearer first"
    assert access.client().configuration.ssl_ca_cert == str(account / "ca.crt")


def test_address_of_ipv6_is_put_into_brackets(account: Path) -> None:
    environ = IN_CLUSTER | {"KUBERNETES_SERVICE_HOST": "2001:DB8::7"}
    access = find_access(environ=environ, service_account=account)
    assert access.server == "https://[2001:DB8::7]:6443"
    assert access.addresses() == {"2001:db8::7"}


def test_token_is_the_one_on_disk_at_each_request(account: Path) -> None:
    access = find_access(environ=IN_CLUSTER, service_account=account)
    client = access.client()
    publish(account, "second\n")
    assert sent(access) == "bearer second"
    assert access.client() is client, "the client and its connections stay"


@pytest.mark.parametrize("empty", ["", " \n"])
def test_token_that_is_empty_for_a_moment_leaves_the_one_before_in_use(account: Path, empty: str) -> None:
    access = find_access(environ=IN_CLUSTER, service_account=account)
    with structlog.testing.capture_logs() as log:
        publish(account, empty)
        assert [sent(access) for _ in range(3)] == ["bearer first"] * 3
        publish(account, "second")
        assert sent(access) == "bearer second"
    assert [line["event"] for line in log] == ["credentials can't be read", "credentials can be read again"]


def test_files_that_are_gone_leave_what_was_read_in_use(account: Path) -> None:
    access = find_access(environ=IN_CLUSTER, service_account=account)
    (account / "token").unlink()
    assert sent(access) == "bearer first"


def test_kubeconfig_names_a_token_file_which_is_read_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    access = find_access(str(kubeconfig(tmp_path, {"tokenFile": str(token)})))
    assert access.server == "https://192.0.2.8:6443"
    assert sent(access) == "Bearer first"
    token.write_text("second")
    assert sent(access) == "Bearer second"


def test_token_in_a_kubeconfig_is_followed_as_is_its_server(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, {"token": "first"})
    access = find_access(str(path))
    client = access.client()
    kubeconfig(tmp_path, {"token": "second"})
    assert sent(access) == "Bearer second"
    assert access.client() is client
    kubeconfig(tmp_path, {"token": "second"}, server="https://192.0.2.9:6443")
    assert access.client() is not client
    assert access.client().configuration.host == access.server == "https://192.0.2.9:6443"


def program(tmp_path: Path, **status: str) -> Path:
    """A kubeconfig whose user gets tokens from a program: token-1, token-2 and so on; each run is a line in runs."""
    runs, path = tmp_path / "runs", tmp_path / "program"
    version = "client.authentication.k8s.io/v1"
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "TOKEN", **status}}
    path.write_text(
        f"#!/bin/sh\necho run >> {runs}\necho '{json.dumps(credential)}' | sed \"s/TOKEN/token-$(wc -l < {runs})/\"\n"
    )
    path.chmod(0o755)
    return kubeconfig(tmp_path, {"exec": {"apiVersion": version, "command": str(path), "interactiveMode": "Never"}})


def test_program_that_gives_tokens_is_run_at_start_and_when_its_token_is_refused(tmp_path: Path) -> None:
    access = find_access(str(program(tmp_path)))
    assert [sent(access) for _ in range(3)] == ["Bearer token-1"] * 3
    access.renew()
    assert [sent(access) for _ in range(3)] == ["Bearer token-2"] * 3
    assert (tmp_path / "runs").read_text().count("run") == 2


def test_program_is_run_again_when_its_token_has_run_out(tmp_path: Path) -> None:
    access = find_access(str(program(tmp_path, expirationTimestamp="2020-01-01T00:00:00Z")))
    assert sent(access) != sent(access)


def test_master_takes_the_place_of_the_address_and_credentials_stay(tmp_path: Path, account: Path) -> None:
    master = "https://192.0.2.99:6443"
    for access in (
        find_access(str(kubeconfig(tmp_path, {"token": "t"})), f"{master}/"),
        find_access(master=master, environ=IN_CLUSTER, service_account=account),
    ):
        assert access.server == access.client().configuration.host == master
        assert sent(access) in {"Bearer t", "bearer first"}
        assert not access.through_service


def test_master_alone_is_asked_without_credentials() -> None:
    access = find_access(master="http://127.0.0.1:8080", environ={})
    assert access.server == "http://127.0.0.1:8080"
    assert sent(access) is None


def test_proxy_between_is_not_asked_for_hosts_that_the_environment_excepts(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://192.0.2.50:3128")
    assert find_access(environ=IN_CLUSTER, service_account=account).client().rest_client.pool_manager.proxy is not None
    monkeypatch.setenv("NO_PROXY", "192.0.2.7")
    assert find_access(environ=IN_CLUSTER, service_account=account).client().rest_client.pool_manager.proxy is None


@pytest.mark.parametrize(
    ("told", "through"),
    [
        ({"KUBERNETES_PORT": "tcp://192.0.2.7:443"}, True),
        ({"KUBERNETES_PORT": "tcp://10.96.0.1:443"}, False),
        ({"KUBERNETES_PORT": "nonsense"}, False),
        ({}, False),
    ],
)
def test_address_that_the_kubelet_gave_is_told_from_one_that_the_manifest_gives(
    account: Path, told: dict[str, str], through: bool
) -> None:
    assert find_access(environ=IN_CLUSTER | told, service_account=account).through_service is through


@pytest.mark.parametrize("name", ["kubernetes.default.svc", "localhost"])
def test_host_may_be_a_name(account: Path, name: str) -> None:
    environ = IN_CLUSTER | {"KUBERNETES_SERVICE_HOST": name, "KUBERNETES_PORT": "tcp://10.96.0.1:443"}
    access = find_access(environ=environ, service_account=account)
    assert access.host == name
    assert not access.through_service
    if name == "localhost":
        assert access.addresses() & {"127.0.0.1", "::1"}


def test_nothing_that_says_where_the_server_is_names_the_ways_to_say_it() -> None:
    with pytest.raises(SourceError, match=r"--kubeconfig.*--master.*--manifests"):
        find_access(environ={})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("", "empty|Invalid|No configuration"),
        ("- a\n- list\n", "kubeconfig"),
        ("a: [b", "kubeconfig"),
        ("apiVersion: v1\nkind: Config\n", "current-context"),
        (b"\xff\xfe\x00", "kubeconfig"),
    ],
)
def test_kubeconfig_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, content: str | bytes | None, said: str
) -> None:
    path = tmp_path / "kubeconfig"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_text(content)
    with pytest.raises(SourceError, match=said) as raised:
        find_access(str(path))
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("server", ["192.0.2.8:6443", "ftp://192.0.2.8", "https://", "https://192.0.2.8:70000", ""])
def test_address_that_is_no_server_is_refused(tmp_path: Path, server: str) -> None:
    with pytest.raises(SourceError, match="is not the address of an API server"):
        find_access(str(kubeconfig(tmp_path, {"token": "t"}, server)))


def test_pod_without_a_service_account_says_which_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=str(tmp_path)):
        find_access(environ=IN_CLUSTER, service_account=tmp_path)


def test_unreadable_kubeconfig_is_named(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, {})
    path.chmod(0)
    if os.access(path, os.R_OK):
        path.unlink()
        path.mkdir()  # root reads every file
    with pytest.raises(SourceError, match=str(path)):
        find_access(str(path))
