"""`python -m emberline`: the same as the command `emberline`."""

from emberline.cli import main

if __name__ == "__main__":
    main()
