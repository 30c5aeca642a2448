"""What tools print as Markdown; of its own, so that one that only draws does not wait for sacrebleu."""


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; numbers are the columns after the first."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def cell(text: str) -> str:
    """The text, which may be a file's name, with nothing in it that would end the cell."""
    return " ".join(text.splitlines()).replace("|", "\\|")
