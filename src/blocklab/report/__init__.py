"""What a study found, shown: charts, sentences, tables and one page. Reads results, never runs."""
