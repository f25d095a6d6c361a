"""What people and monitors see of the work."""
