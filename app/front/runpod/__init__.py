"""The queue worker of `pilotlight serve --runpod-queue`: RunPod's jobs answered by this server's own routes."""
