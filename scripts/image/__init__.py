"""What scripts/test_image is made of, and the two files that the Dockerfile takes from here (entrypoint, trim.py)."""
