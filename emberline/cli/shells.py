"""Completion in shells: what click offers, with a script for bash that keeps addresses together.

bash breaks words at colons, so click's own script hands over http://HOST:PORT as several words. Ours hands over the
line and the place of the cursor.
"""

from __future__ import annotations

import os
import sys

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

#: The environment variable by which the script of a shell asks for completions.
COMPLETE_VARIABLE = "_EMBERLINE_COMPLETE"

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response line type value
    response=$(env EMBERLINE_LINE="$COMP_LINE" EMBERLINE_POINT="$COMP_POINT" \
%(complete_var)s=bash_complete "$1" 2>/dev/null)
    COMPREPLY=()
    for line in $response; do
        type=${line%%%%,*} value=${line#*,}
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class LineOfBash(BashComplete):
    """Completes a line of bash up to its cursor."""

    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """Does nothing: click starts the bash of the PATH, which need not be the one that reads the script."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Returns the words before the cursor, and the one that it is in or behind."""
        line = os.environ["EMBERLINE_LINE"][: int(os.environ["EMBERLINE_POINT"])]
        words = split_arg_string(line)
        self._word = words.pop() if words and not line[-1:].isspace() else ""
        return words[1:], self._word

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Returns the type of an item, and what of it follows the last colon of the word, where bash breaks it."""
        before = self._word[: self._word.rfind(":") + 1]
        value = str(item.value)
        return f"{item.type},{value.removeprefix(before) if item.type == 'plain' else value}"


def prepare_completion() -> None:
    """Prepares this process, which a shell asks for completions: what goes wrong is not printed into its line."""
    add_completion_class(LineOfBash)
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
