"""What is answered, field by field, with an example of each; one module for each subject of the API."""
