"""Who serves what, decided per node. Everything here is pure: same objects in, same answer out."""
