"""What users can ask for: one function for each verb, with its options and its job."""
