"""The index of the history: values and where they occur."""
