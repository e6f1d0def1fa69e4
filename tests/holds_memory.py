"""Another process that holds all of a GPU's memory but LEFT bytes: python holds_memory.py UUID LEFT.

Prints "ready" when it does, and gives all back when its standard input ends.
"""

import sys

from cuda.bindings import driver

from microbench.gpu.cuda.case import OUT_OF_MEMORY
from microbench.gpu.cuda.context import Context, check

PIECE_BYTES = 256 << 20


def main(uuid: str, left_bytes: int) -> None:
    Context(uuid)
    while (free_bytes := int(check(driver.cuMemGetInfo())[0])) > left_bytes:
        code, _ = driver.cuMemAlloc(min(PIECE_BYTES, free_bytes - left_bytes))
        if int(code) == OUT_OF_MEMORY:
            break
        check((code,))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
