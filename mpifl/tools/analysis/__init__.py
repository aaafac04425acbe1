"""Tables, figures and summaries, made from run files only."""
