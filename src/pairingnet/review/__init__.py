"""What a person looks at: pictures of joins and groups, the report page, exports."""
