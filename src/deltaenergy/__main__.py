"""`python -m deltaenergy` is the command `deltaenergy`."""

from deltaenergy.cli.main import run

if __name__ == "__main__":
    run()
