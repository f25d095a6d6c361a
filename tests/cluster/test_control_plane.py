"""The control plane is a real one, and is gone when it should be."""

from cluster.control_plane import ControlPlane


def test_it_has_the_version_that_go_mod_names(control_plane: ControlPlane) -> None:
    """The version is stamped into the server and into kubectl: version skew checks depend on it."""
    said = control_plane.kubectl("version").splitlines()
    print(f"started in {control_plane.started_in:.1f} s")
    assert f"Client Version: {control_plane.programs.version}" in said
    assert f"Server Version: {control_plane.programs.version}" in said
