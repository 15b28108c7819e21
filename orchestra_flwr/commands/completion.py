"""Tab completion of keys and choices, as a script for bash and zsh (--completion)."""

import shlex
from collections.abc import Sequence

SCRIPT = """\
# eval "$({program} --completion)"
if [ -n "$ZSH_VERSION" ]; then autoload -U +X bashcompinit && bashcompinit; fi
_{name}() {{
  local line="${{COMP_LINE:0:$COMP_POINT}}" found
  local word="${{line##* }}"
  found=($(compgen -W {words} -- "$word"))
  # To the shell "=" separates words, so only what follows it is inserted.
  case "$word" in *=*) found=("${{found[@]#*=}}") ;; esac
  COMPREPLY=("${{found[@]}}")
}}
complete -o nospace -o default -F _{name} {programs}
"""


def completion_script(programs: Sequence[str], words: Sequence[str]) -> str:
    """The script that completes the arguments of one command in a shell, under all of its names."""
    return SCRIPT.format(
        program=programs[0],
        name=programs[0].replace("-", "_").replace(".", "_"),
        programs=shlex.join(programs),
        words=shlex.quote(" ".join(words)),
    )
