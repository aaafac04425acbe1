"""Tables and text as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

LETTER, GAP = 4.4 / 72.27, 6 / 72.27  # inches: about a letter of LaTeX's \\footnotesize; the gap between columns
COLUMN = 3.5  # inches: what is at most so wide is set in one column of a two-column page
PAGE = 7.0  # inches: width of a page
SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "[": "{[}", "]": "{]}", "*": "{*}",  # LaTeX would read these after a line end as its arguments
    "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "∞": r"$\infty$", "°": r"$^\circ$", "–": "--", "—": "---",
    "≤": r"$\leq$", "≥": r"$\geq$", "→": r"$\to$", "µ": r"$\mu$",
}  # fmt: skip
GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau",
    "φ": "varphi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda",
    "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
SIGNS = str.maketrans({"±": r"$\pm$", "–": "--", "<": "$<$", ">": "$>$"})  # of numbers
ACCENTED = {chr(code) for code in range(0xC0, 0x180)} - set("ÐÞðþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲųſ")  # letters of pdfLaTeX's fonts
LIGATURES = ("--", "``", "''", ",,", "!`", "?`")  # pairs that LaTeX joins into one letter
MEAN = re.compile(r"-?(\d+)\.?(\d*)(?: ± ([\d.]+))?")  # "78.2 ± 1.3", or one number
NUMBER = re.compile(r"(?P<minus>(?<![\d.)])-(?=\d))|(?P<mantissa>\d+(?:\.\d+)?)e(?P<exponent>[+-]?\d+)")


def escape(text: str) -> str:
    """The text such that LaTeX prints it as it is.

    Every engine can set the result, pdfLaTeX with its default fonts among them: letters that these lack are written by
    their code, as [U+4E2D].
    """
    pairs = zip(f"\0{text}", text, strict=False)
    return "".join(("{}" if before + letter in LIGATURES else "") + _letter(letter) for before, letter in pairs)


def _letter(letter: str) -> str:
    if letter in SPECIAL:
        return SPECIAL[letter]
    if letter in GREEK:
        return rf"$\{GREEK[letter]}$"
    if (letter.isascii() and letter.isprintable()) or letter in ACCENTED:
        return letter
    return "~" if letter == "\xa0" else f"{{[}}U+{ord(letter):04X}{{]}}"


def prose(text: str) -> str:
    """A sentence as LaTeX, with signs in mathematics."""
    return re.sub(r"(?<![\w.)])-(?=\d)", "$-$", escape(text))


def number(text: str) -> str:
    """A cell of numbers, such as "1.5e-05 ± 2" or "-1 (-2–3), 8 of 10", with signs and exponents in mathematics."""

    def written(found: re.Match[str]) -> str:
        if found["minus"]:
            return "$-$"
        return rf"${found['mantissa']} \times 10^{{{int(found['exponent'])}}}$"

    return NUMBER.sub(written, text).translate(SIGNS).replace("inf", r"$\infty$")


class Style(NamedTuple):
    """How a table is set."""

    caption: str
    label: str = ""  # of \\ref; empty: none
    below: str = ""  # a note below the table
    column: bool | None = None  # True: in one of two columns; False: across both; None: as wide as it is, in a `table`
    siunitx: bool = False  # numbers are aligned by the package siunitx
    titles: Sequence[str] = ()  # they replace the table's titles
    span: tuple[str, int, int] | None = None  # a title over several columns: text, columns before it, and below it


def table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], left: int, style: Style, bold: Sequence[bool],
    best: Collection[tuple[int, int]] = (),
) -> str:  # fmt: skip
    """A table environment with the rules of booktabs.

    titles, rows: plain text. left: number of first columns, which hold text and are aligned left; the others hold
    numbers. bold: rows that are set in bold. best: cells, as (row, column), that are.
    """
    environment = "table*" if style.column is False else "table"
    spanning = []
    if style.span:
        text, before, count = style.span
        spanning.append("& " * before + rf"\multicolumn{{{count}}}{{c}}{{{escape(text)}}} \\")
        spanning.append(rf"\cmidrule(lr){{{before + 1}-{before + count}}}")
    columns = [_number_column([row[k] for row in rows], style) for k in range(left, len(titles))]
    packages = "booktabs,siunitx" if style.siunitx else "booktabs"
    lines = [
        rf"% needs \usepackage{{{packages}}}",
        rf"\begin{{{environment}}}",
        r"\centering",
        rf"\caption{{{escape(style.caption)}}}",
        *([rf"\label{{{style.label}}}"] if style.label else []),
        *([r"\footnotesize\setlength{\tabcolsep}{3pt}"] if style.column is not None else []),
        rf"\begin{{tabular}}{{{'l' * left}{''.join(columns)}}}",
        r"\toprule",
        *spanning,
        " & ".join(f"{{{escape(t)}}}" if style.siunitx else escape(t) for t in style.titles or titles) + r" \\",
        r"\midrule",
    ]
    for k, (row, marked) in enumerate(zip(rows, bold, strict=True)):
        cells = [escape(cell) if j < left else _cell(cell, style) for j, cell in enumerate(row)]
        for j in range(len(cells)):
            if marked or (k, j) in best:
                cells[j] = rf"\bfseries {cells[j]}" if style.siunitx else rf"\textbf{{{cells[j]}}}"
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if style.below:
        lines.append(rf"\par\smallskip\parbox{{\linewidth}}{{\footnotesize {escape(style.below)}}}")
    return "\n".join([*lines, rf"\end{{{environment}}}", ""])


def width_of(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> float:
    """About how wide a table in \\footnotesize is, inches."""
    return sum(max(map(len, each)) * LETTER + GAP for each in zip(titles, *rows, strict=True))


def figure(name: str, caption: str, width: float) -> str:
    """A figure environment that includes the picture of this name; width: inches."""
    environment = "figure" if width <= COLUMN else "figure*"
    lines = [
        r"% needs \usepackage{graphicx}, and \graphicspath{{FOLDER/}} for the folder of the picture",
        rf"\begin{{{environment}}}", r"\centering", rf"\includegraphics{{{name}}}", rf"\caption{{{escape(caption)}}}",
        rf"\label{{fig:{name}}}", rf"\end{{{environment}}}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _number_column(cells: Sequence[str], style: Style) -> str:
    """The column type: r, or siunitx's S with room for the largest mean and spread."""
    found = [match for cell in cells if (match := MEAN.fullmatch(cell))]
    if not style.siunitx or not found:
        return "r"
    minus = "-" if any(match[0].startswith("-") for match in found) else ""
    whole, digits = (max(len(match[k]) for match in found) for k in (1, 2))
    half = max(len((match[3] or "").replace(".", "").lstrip("0")) for match in found)
    spread = f"({half})" if half else ""
    return f"S[table-format={minus}{whole}.{digits}{spread},separate-uncertainty,detect-weight]"


def _cell(cell: str, style: Style) -> str:
    """A cell of numbers; what siunitx does not read is put in braces."""
    if not style.siunitx:
        return number(cell)
    return cell.replace("±", r"\pm") if MEAN.fullmatch(cell) else f"{{{number(cell)}}}"
