"""The top floor: what is read, generated text of Markdown pages and the report. Imports all floors below."""
