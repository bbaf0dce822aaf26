"""The arithmetic of a kernel, read off it by calls with chosen inputs."""
