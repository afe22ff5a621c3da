"""Exchange with the Hugging Face format: names, loading, exporting."""
