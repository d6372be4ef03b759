"""RunPod's hub asks a repository for its handler: this starts the queue's worker, whose handler stands in
app/front/runpod/jobs.py. Arguments are those of `pilotlight serve`; --rp_serve_api tries it without a queue."""

import os
import sys

if __name__ == "__main__":
    command = [sys.executable, "-m", "pilotlight", "serve", "--runpod-queue", *sys.argv[1:]]
    os.execv(command[0], command)  # noqa: S606
