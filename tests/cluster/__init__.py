"""A real control plane: etcd, kube-apiserver and kube-controller-manager in a network namespace of their own.

    with ControlPlane() as plane:
        plane.api.create(service)                         # an HTTP client, usable from any thread of this process
        plane.kubectl("get", "services", "--all-namespaces")
        address, address6 = plane.attach(world.node("node-a"), name="control")
        config = plane.kubeconfig_for("nodeproxy")        # reaches plane.server from node-a

``programs`` builds the programs (``python -m cluster.programs``), ``control_plane`` starts them, ``identity`` makes
their keys and users, ``processes`` keeps them from outliving this process, ``api`` is the client. In tests, the
fixture ``control_plane`` is one that all tests of a pytest process share: use a namespace of your own
(``plane.new_namespace()``), and clean up what belongs to none.
"""
