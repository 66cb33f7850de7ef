"""``discovery completion``: the script that teaches a shell the commands and flags."""

from discovery import usage
from discovery.settings import CompletionSettings


def run(settings: CompletionSettings) -> int:
    """Print the script for the shell that was named."""
    print(usage.completion(settings.shell))
    return 0
