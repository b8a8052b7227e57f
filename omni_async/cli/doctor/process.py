"""One backend, looked at in a process of its own.

In: a job on standard input. Out: a line of findings on standard output for each question.
Never: outlives its time limit, lets a vendor's words or its end get between the findings.

Run as ``python -m omni_async.cli.doctor.process NAME``; the name is for whoever looks at ``ps``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pydantic

from ... import registry
from ...abc import Finding, Sight
from ...abc.findings import fault, of_error
from ...errors import BackendUnavailable, ConfigError
from .words import Job, Question, decode_job, encode_findings


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # vendors write to both
    job = decode_job(sys.stdin.buffer.read())
    signal.setitimer(signal.ITIMER_REAL, job.limit)  # also when nobody is there to end it
    for question in job.questions:
        os.write(answers, encode_findings(asyncio.run(findings(job, question))) + b"\n")
    # Vendors' threads and what they do at exit have nothing to tell any more.
    os._exit(0)


async def findings(job: Job, question: Question) -> list[Finding]:
    """What the backend tells; its own failure is a finding, too."""
    try:
        backend = registry.backend_for(job.backend)
        options = backend.options.model_validate(question.options)
        return await backend.examine(options, question.role, Sight(Path(job.root)))
    except (BackendUnavailable, ConfigError) as error:
        return [of_error(error)]
    except pydantic.ValidationError as error:
        return [fault("options", f"cannot be judged: {error}", "name them in a deploy file")]
    except Exception as error:  # noqa: BLE001 - whatever a vendor raises, it is told
        return [
            fault(
                "examination",
                f"failed: {type(error).__name__}: {error}",
                "this is a mistake of the backend's own check or of the vendor's package; install that again",
            )
        ]


if __name__ == "__main__":
    main()
