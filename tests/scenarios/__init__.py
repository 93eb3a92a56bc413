"""One YAML file a sentence: the file's name says what happens, the file says when."""
