"""The Helm chart: rendered by Helm itself, and judged by what it renders. Nothing here reads a template."""
