"""What users do with runs: analysis, exports, studies, batch scripts, papers, checks. They import the core."""
