"""What users do with runs: tables and figures, exports, studies, batch scripts, papers, checks. They import the core."""
