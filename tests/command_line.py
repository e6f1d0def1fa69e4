"""The command line as tests call it: in their own process, what it prints caught, what breaks inside it raised."""

from typer.testing import CliRunner, Result

from microbench.cli.app import parser


def call(*arguments: str, **environment: str) -> Result:
    """What microbench answers to these arguments."""
    return CliRunner().invoke(parser(), list(arguments), env=environment, catch_exceptions=False)
