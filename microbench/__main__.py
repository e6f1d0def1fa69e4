"""`python -m microbench`: the same as the command microbench."""

from microbench.cli.app import main

if __name__ == "__main__":
    main()
