"""What ptxas writes of products that it could not leave asynchronous, in Pallas and in CUDA."""

import re

_WARNING = re.compile(r"\(C75\d\d\)")
# "warpgroup.arrive is injected": the compiler adds an instruction that is cheap and was meant.
_BENIGN = "C7519"


def serialises(line: str) -> bool:
    """Whether a line of the log says so."""
    return "erialized" in line or (_WARNING.search(line) is not None and _BENIGN not in line)
