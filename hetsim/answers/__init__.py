"""The answer to a question: one shape, which is printed, written as HTML, Markdown and JSON, and shown by notebooks here."""
