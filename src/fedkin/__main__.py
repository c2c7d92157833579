"""`python -m fedkin` is the command `fedkin`."""

from fedkin_start import main

if __name__ == "__main__":
    main()
