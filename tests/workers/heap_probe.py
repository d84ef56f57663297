"""Free large buffers between small ones, and print the size of the heap in MB."""

from __future__ import annotations

import ctypes
import gc
import sys

from gen_durable._runtime.processes.malloc import return_large_buffers


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usm", "fsm", "used", "free", "keep")
    )


def main(mode: str) -> None:
    if mode == "fixed":
        return_large_buffers()
    bytes(20_000_000)  # freed at once, which raises glibc's mmap threshold to 20 MB
    pairs = [(bytearray(1_000_000), bytearray(20_000)) for _ in range(75)]
    small = [each for _, each in pairs]
    del pairs
    gc.collect()
    call = ctypes.CDLL(None).mallinfo2
    call.restype = _Mallinfo
    sys.stdout.write(f"{call().arena // 2**20}")
    del small


if __name__ == "__main__":
    main(sys.argv[1])
