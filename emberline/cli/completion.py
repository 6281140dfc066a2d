"""`emberline completion`: prints what a shell needs to complete our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from emberline.cli.command import Command
from emberline.cli.shells import COMPLETE_VARIABLE, prepare_completion

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=Command,
    name="completion",
    epilog="""\b
Examples:
  emberline completion bash > ~/.local/share/bash-completion/completions/emberline
  emberline completion zsh > "${fpath[1]}/_emberline"
  emberline completion fish > ~/.config/fish/completions/emberline.fish
  source <(emberline completion bash)         in this shell only""",
)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that lets SHELL complete commands, options, files and names.

    Names of models and snapshots come from the server of --url or EMBERLINE_URL, where it answers within half a second,
    or from the folder of --model-repository.
    """
    prepare_completion()
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(context.find_root().command, {}, "emberline", COMPLETE_VARIABLE).source(), nl=False)
