"""Actions of operators: parameters, preview and execution of each, without HTML and HTTP."""
