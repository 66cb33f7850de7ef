"""The image without a container engine: its Dockerfile read, carried out into a folder, and what came out run."""
