"""What the API server, or a folder of manifests, says: typed, validated objects and their changes."""
