"""A step's process: `python -m scripts.gpu.run_step MODULE JOB`.

Whatever a step does to the driver, to itself or to the clock, the steps after it run.
"""

import importlib
import json
import sys
import traceback
from pathlib import Path

from .job import Failed, Job, Skipped


def main(module: str, job_file: str) -> int:
    job = Job(**json.loads(Path(job_file).read_bytes()))
    job.put()
    try:
        importlib.import_module(module).run(job)
    except Skipped as why:
        job.write("skipped", str(why))
    except Failed as why:
        job.write("failed", str(why))
    except Exception as error:
        traceback.print_exc()
        job.write("failed", f"{type(error).__name__}: {error}")
    else:
        job.write("ok", job.note)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
