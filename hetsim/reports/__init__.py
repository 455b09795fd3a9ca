"""Reports for other tools: a run or a comparison as an HTML page, or as a trace for ui.perfetto.dev."""
