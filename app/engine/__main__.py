"""`python -m pilotlight.engine FD DEVICE [WEIGHTS ...]`: process 2, with its end of the front's line as FD.

What takes longest is begun before anything else is imported: DEVICE, as --device has it, and the reading of the files
WEIGHTS. Garbage is not looked for until the model is loaded: what is imported stays.
"""

import gc
import sys
from contextlib import suppress

from ..device import read_ahead
from ..device.choice import cuda_ordinal


def run(descriptor: int, device: str, *weights: str) -> int:
    gc.disable()
    context, ordinal = None, None
    with suppress(ValueError):  # no device's name: the front will say so
        ordinal = cuda_ordinal(device)
    if ordinal is not None:
        from ..device.cuda import early

        context = early.begin(ordinal)
    reading = [read_ahead.begin(file, mapped=ordinal is None) for file in weights]
    from .worker import main

    return main(descriptor, *([] if context is None else [context]), *filter(None, reading))


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), *sys.argv[2:]))
