"""What people see of the flags: ``--help`` and the scripts for shell completion, drawn by cyclopts.

Built from ``settings.flags``, and only when asked for, since the library takes as long to load as all the rest. It
never reads a command line: ``flags`` does that, by rules of its own.
"""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Group, Parameter
from rich.console import Console

from discovery.settings import SHELLS, FlagInfo, arguments, flags

COMMANDS = {
    "serve": "Run the service: pools register, routers read the list.",
    "pools": "Show the pools that a running service lists.",
    "register": "Register one pool and keep it registered until stopped; deregister at the end.",
    "doctor": "Ask a running service why pools are listed or not, and what to do: all of them, or those named.",
    "version": "Print the version.",
    "completion": f"Print the script for shell completion ({', '.join(SHELLS)}): source <(discovery completion bash)",
}

_VARIABLES = """
Every flag can be given as a variable: DISCOVERY_ and its name in upper case with _ for -, such as {variable}. A flag \
wins over its variable; an empty variable counts as unset; values of a repeatable flag are separated by white space. \
A value that begins with - is given after =."""


def print_help(command: str | None) -> None:
    """The help of a command, or of the program, to standard output."""
    # Wrapped to the terminal; no colours where the output is no terminal or they are not wanted. Captured first, since
    # the console would end the process itself where the reader has left.
    console = Console(highlight=False)
    with console.capture() as text:
        _app().help_print([command] if command else [], console=console)
    sys.stdout.write(text.get())


def completion(shell: Literal["bash", "zsh", "fish"]) -> str:
    """The completion script for a shell."""
    return _app().generate_completion(prog_name="discovery", shell=shell)


def _app() -> App:
    app = App(
        name="discovery",
        help="Service discovery for pools of language-model servers in many Kubernetes clusters.",
        help_format="plaintext",
        version_flags=[],
    )
    for name in COMMANDS:
        app.command(_command(name), name=name)
    return app


def _command(name: str) -> Callable[..., None]:
    """A function whose signature is the command's flags: the form in which cyclopts takes them."""

    def command(**_: Any) -> None: ...

    own = flags(name)
    titles = list(dict.fromkeys(flag.group for flag in own))
    parameters = [_parameter(flag, Group(flag.group, sort_key=titles.index(flag.group))) for flag in own]
    parameters = [_arguments_parameter(argument) for argument in arguments(name)] + parameters
    if name == "completion":
        parameters = [_shell_parameter()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = COMMANDS[name] + ("\n" + _VARIABLES.format(variable=own[0].variable) if own else "")
    return command


def _parameter(flag: FlagInfo, group: Group) -> inspect.Parameter:
    annotation = Parameter(
        name=(flag.name, flag.short) if flag.short else flag.name,
        group=group,
        help=f"{flag.help} {'Required.' if flag.default == 'required' else f'Default: {flag.default}.'}",
        negative=(),
        show_default=False,
        show_choices=False,
        show_env_var=False,
        metavar=("|".join(flag.choices) or flag.metavar) + (" ..." if flag.many else ""),
    )
    return inspect.Parameter(
        flag.name[2:].replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_type(flag), annotation],
    )


def _arguments_parameter(argument: FlagInfo) -> inspect.Parameter:
    annotation = Parameter(help=f"{argument.help} Default: {argument.default}.", show_default=False)
    return inspect.Parameter(
        argument.name.lower(), inspect.Parameter.VAR_POSITIONAL, annotation=Annotated[str, annotation]
    )


def _type(flag: FlagInfo) -> Any:
    """The type by which completion chooses what to offer: nothing, files or words."""
    if flag.switch:
        return bool
    if flag.choices:
        return Literal[flag.choices]
    return Path if flag.metavar == "PATH" else str


def _shell_parameter() -> inspect.Parameter:
    return inspect.Parameter(
        "shell",
        inspect.Parameter.POSITIONAL_ONLY,
        annotation=Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Your shell.")],
    )
