"""`python -m fedbnsl` is the command `fedbnsl`."""

from fedbnsl.cli import run

if __name__ == "__main__":
    run()
