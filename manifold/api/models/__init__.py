"""The models of the answers, field by field with an example each; one module for each subject of the API."""
