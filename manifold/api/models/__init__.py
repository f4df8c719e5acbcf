"""Response models, field by field, each with an example; one module per subject."""
