"""The side of the program: ``python -m evener.subprocess.child REQUEST``, see `StepRequest`."""

from __future__ import annotations

import sys
import traceback

from evener.errors import EvenerError
from evener.subprocess.answer import reply, reply_error
from evener.subprocess.audited_step import audit_first_step
from evener.subprocess.measured_step import measure_first_step
from evener.subprocess.request import StepRequest


def main() -> None:
    """Answer the request on the command line."""
    request = StepRequest.from_json(sys.argv[1])
    try:
        if request.question == "audit":
            audit_first_step(request)
        else:
            measure_first_step(request)
    except EvenerError as error:
        traceback.print_exc()
        reply_error(request, error)
    reply(request, "ended")


if __name__ == "__main__":
    main()
