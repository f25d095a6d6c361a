"""Real packets: nodes, pods and clients out of network namespaces, and the agent between them.

    with World(nodes=2, pods=3) as world:
        world.serve_pods(8080)
        with Agent(world.node("node-a")) as agent:
            web = service("web", 1, both(80, node_port=30080))
            agent.apply(web=[web, *backends(web, world.pods.values(), 8080)])
            world.pod("pod-a1").connect("172.30.0.1", 80)           # Answer("pod-b2", "10.180.1.10", …)
            world.client.connect("192.168.0.2", 30080, "UDP")       # Answer("pod-a3", "10.180.1.1", …)
            world.client.connect("172.30.0.1", 81)                  # Rejected(by="192.168.0.2")

``world`` builds the network, ``addresses`` is its plan, ``namespaces`` what it is made of; ``servers`` answer and
``probe`` asks; ``manifests`` makes Kubernetes objects, ``agent`` runs nodeproxy on a node, ``monitor`` records what
is written to its ruleset, ``shares`` judges distributions. Everything vanishes with the process.
"""
