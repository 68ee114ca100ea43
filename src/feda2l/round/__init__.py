"""One round of Algorithm 1, part by part."""
