"""Tables and text as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
ACCENTED = {chr(code) for code in range(0xC0, 0x180)} - set("ÐÞðþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲųſ")  # letters of pdfLaTeX's fonts
LIGATURES = ("--", "``", "''", ",,", "!`", "?`")  # pairs that LaTeX joins into one letter
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


def number(text: str) -> str:
    """A cell of numbers, such as "1.5e-05 ± 2" or "-1 (-2–3), 8 of 10", with signs and exponents in mathematics."""

    def written(found: re.Match[str]) -> str:
        if found["minus"]:
            return "$-$"
        return rf"${found['mantissa']} \times 10^{{{int(found['exponent'])}}}$"

    plain = NUMBER.sub(written, text)
    return plain.replace("±", r"$\pm$").replace("–", "--").replace(">", "$>$").replace("inf", r"$\infty$")


def table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], left: int, caption: str, bold: Sequence[bool]
) -> str:  # fmt: skip
    """A table environment with the rules of booktabs.

    titles, rows: plain text. left: number of first columns, which hold text and are aligned left; the others hold
    numbers. bold: rows that are set in bold.
    """
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(caption)}}}",
        rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(titles) - left)}}}",
        r"\toprule",
        " & ".join(map(escape, titles)) + r" \\",
        r"\midrule",
    ]
    for row, marked in zip(rows, bold, strict=True):
        cells = [escape(cell) if k < left else number(cell) for k, cell in enumerate(row)]
        lines.append(" & ".join(rf"\textbf{{{cell}}}" if marked else cell for cell in cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])
