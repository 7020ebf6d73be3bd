"""`python -m fedbnsl` is the command `fedbnsl`."""

from fedbnsl.cli import main

if __name__ == "__main__":
    main()
