"""What people and tools read of results.

- A *report* is everything that there is to show of a run, or of stored baselines, as one value: `Report`.
- A *document* is text with headings, facts and tables, which renderers lay out: `Document`. Functions named
  `*_document` make one of figures.
- A *summary* is the document about a run: `terminal_summary`, and `job_summary` for the page of a CI job.
- A *page* is a file of HTML, made of a report or of compared platforms.
"""
