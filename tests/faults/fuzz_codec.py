"""`python fuzz_codec.py CORPUS [libFuzzer options]`: bytes, led by coverage, into all that decodes messages."""

import sys

import atheris

with atheris.instrument_imports(include=["fedbnsl"]):
    from faults import wire_doors


def one_input(data: bytes) -> None:
    wire_doors.knock(data)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
