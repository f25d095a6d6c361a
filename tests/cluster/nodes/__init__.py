"""Nodes made of network namespaces in a real cluster: kubelets that only say they run pods, agents, and packets.

with LiveCluster(programs) as cluster, cluster.agents():
    with cluster.plane.new_namespace() as namespace:
        cluster.plane.api.create(deployment("web", namespace, replicas=3))
        ends = cluster.kubelets.wait_ready(namespace, "app=web", 3)      # {"pod-a2", "pod-b4", "pod-c3"}
        expect(cluster, [way ...])
"""
