"""Real packets: nodes, pods and clients out of network namespaces, and the agent between them."""
