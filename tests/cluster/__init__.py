"""A real control plane: etcd, kube-apiserver and kube-controller-manager in a network namespace of their own.

    with ControlPlane() as plane:
        plane.api.create(service)                         # an HTTP client, usable from any thread of this process
        plane.kubectl("get", "services", "--all-namespaces")
        address, address6 = plane.attach(world.node("node-a"), name="control")
        config = plane.kubeconfig_for("nodeproxy")        # reaches plane.server from node-a

``programs`` builds the programs (``python -m cluster.programs``) with the Go that ``go`` finds, ``control_plane``
starts them, ``commands`` has their command lines, ``identity`` makes their keys and users, ``processes`` keeps them
from outliving this process, ``api`` is the client. In tests, the fixture ``control_plane`` is one that all tests of a
pytest process share: use a Kubernetes namespace of your own (``plane.new_namespace()``), remove what belongs to none,
and start again what you stop.
"""
