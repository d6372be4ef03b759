"""The queue worker against RunPod's own SDK."""
