"""Hosts, meshes and placement: several processes as one program, and which device holds what."""
