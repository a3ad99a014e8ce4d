"""Pictures, collections and truth files: in and out."""
